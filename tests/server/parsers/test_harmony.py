"""Harmony's messages: heads, channels, recipients, and that the cutting changes nothing."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.server.parsers.reasoning import REASONING_PARSERS, Start, start_of
from tests.server.parsers.pieces import cut, split

TAGS = REASONING_PARSERS["openai_gptoss"]
THOUGHT = "<|channel|>analysis<|message|>Hm < so.\n<|end|>"
ANSWER = "<|start|>assistant<|channel|>final<|message|>Four <b>.<|return|>"
PREAMBLE = "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
CALL = "<|start|>assistant<|channel|>commentary to=functions.f json<|message|>{}<|call|>"


@pytest.mark.parametrize(
    ("start", "text", "reasoning", "content"),
    [
        (Start.OPEN_QUESTION, THOUGHT + ANSWER, "Hm < so.\n", "Four <b>."),
        (Start.OPEN_QUESTION, THOUGHT + PREAMBLE + ANSWER, "Hm < so.\n", "I look.Four <b>."),
        (Start.OPEN_QUESTION, THOUGHT + THOUGHT + ANSWER, "Hm < so.\n\nHm < so.\n", "Four <b>."),
        (Start.INSIDE, "Hm.<|end|>" + ANSWER, "Hm.", "Four <b>."),
        (Start.INSIDE, "It never ends", "It never ends", ""),
        (Start.OUTSIDE, "Four.<|return|>", "", "Four."),
        (Start.OPEN_QUESTION, "  no heads at all ", "", "  no heads at all "),
        (Start.OPEN_QUESTION, "<|channel|>final<|message|>Four", "", "Four"),
        (Start.OPEN_QUESTION, THOUGHT + "<|start|>assistant<|chan", "Hm < so.\n", ""),
        (Start.OPEN_QUESTION, "<|channel|>analysis<|message|>a<|channel|>final<|message|>b",
         "a", "b"),
        (Start.OPEN_QUESTION, "<|channel|>analysis to=python<|message|>1+1<|call|>", "1+1", ""),
        (Start.OPEN_QUESTION, "<|channel|>" + "x" * 600, "", "x" * 600),
    ],
)  # fmt: skip
def test_channels(start: Start, text: str, reasoning: str, content: str) -> None:
    assert split(TAGS, start, [text]) == (reasoning, content)
    assert split(TAGS, start, list(text)) == (reasoning, content)


def test_a_call_keeps_its_marks_for_the_parser_alone() -> None:
    kept = "<|channel|>commentary to=functions.f<|message|>{}<|call|>"
    text = THOUGHT + CALL
    assert split(TAGS, Start.OPEN_QUESTION, [text], keeps_calls=True) == ("Hm < so.\n", kept)
    assert split(TAGS, Start.OPEN_QUESTION, [text]) == ("Hm < so.\n", "{}")


def test_the_prompt_tells_the_start() -> None:
    assert start_of("<|start|>assistant", TAGS) is Start.OPEN_QUESTION
    assert start_of(f"<|start|>assistant{TAGS.opening}", TAGS) is Start.INSIDE
    assert start_of("<|start|>assistant<|channel|>final<|message|>", TAGS) is Start.OUTSIDE


@given(data=st.data())
def test_no_cut_changes_a_message_and_no_mark_is_shown(data: st.DataObject) -> None:
    marks = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"]
    words = st.sampled_from(
        [*marks, "assistant", "analysis", "final", " to=functions.f", "to=", "<|", "a", " ", "\n"]
    )
    text = "".join(data.draw(st.lists(words, max_size=14)))
    start = data.draw(st.sampled_from(Start))
    whole = split(TAGS, start, [text])
    assert split(TAGS, start, list(text)) == whole
    for part in whole:
        assert not [mark for mark in marks if mark in part]


def test_a_thousand_cuts_of_a_long_answer() -> None:
    dice = random.Random(7)
    text = (THOUGHT + PREAMBLE) * 4 + CALL + ANSWER
    whole = split(TAGS, Start.OPEN_QUESTION, [text])
    for _ in range(1000):
        places = [dice.randrange(len(text)) for _ in range(dice.randrange(1, 9))]
        assert split(TAGS, Start.OPEN_QUESTION, cut(text, places)) == whole
