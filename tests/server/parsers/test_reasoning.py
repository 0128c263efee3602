"""Thoughts and answers of every family, whole and cut anywhere."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.server.parsers.reasoning import (
    REASONING_PARSERS,
    HarmonyTags,
    Start,
    start_of,
)
from tests.server.parsers.pieces import cut, split

PARSERS = pytest.mark.parametrize(
    "name", [name for name, tags in REASONING_PARSERS.items() if not isinstance(tags, HarmonyTags)]
)


@PARSERS
def test_the_model_opens_the_thought(name: str) -> None:
    tags = REASONING_PARSERS[name]
    label = tags.label and f"{tags.label}\n"
    text = f"{tags.opening}{label}\nTwo and two.\n{tags.closing}\n\nFour <b>!"
    for start in (Start.OPEN_QUESTION, Start.INSIDE):
        for said in (text, f"\n {text}"):
            assert split(tags, start, [said]) == ("Two and two.", "Four <b>!")
            assert split(tags, start, list(said)) == ("Two and two.", "Four <b>!")


@PARSERS
def test_the_prompt_opened_the_thought(name: str) -> None:
    tags = REASONING_PARSERS[name]
    label = tags.label and f"{tags.label}\n"
    assert start_of(f"user: hi\n{tags.opening}{label}\n", tags) is Start.INSIDE
    text = f"Hm, so.{tags.closing}Yes."
    assert split(tags, Start.INSIDE, list(text)) == ("Hm, so.", "Yes.")
    assert split(tags, Start.INSIDE, ["It never ", "ends "]) == ("It never ends", "")


@PARSERS
def test_the_prompt_closed_the_thought_at_once(name: str) -> None:
    tags = REASONING_PARSERS[name]
    prompt = f"assistant\n{tags.opening}\n\n{tags.closing}\n\n"
    assert start_of(prompt, tags) is Start.OUTSIDE
    assert split(tags, Start.OUTSIDE, ["  An ", "answer\n"]) == ("", "  An answer\n")


def test_without_a_word_of_it_the_model_decides_or_thinks() -> None:
    assert start_of("assistant\n", REASONING_PARSERS["qwen3"]) is Start.OPEN_QUESTION
    assert start_of("assistant\n", REASONING_PARSERS["deepseek_r1"]) is Start.INSIDE


@PARSERS
@given(data=st.data())
def test_no_cut_changes_the_answer_and_no_tag_is_shown(name: str, data: st.DataObject) -> None:
    tags = REASONING_PARSERS[name]
    words = st.sampled_from(
        [
            tags.opening,
            tags.closing,
            tags.label,
            tags.opening[:-1],
            tags.closing[:3],
            "<",
            " ",
            "\n",
            "a",
            "Ü b",
        ]
    )
    text = "".join(data.draw(st.lists(words, max_size=12)))
    start = data.draw(st.sampled_from(Start))
    whole = split(tags, start, [text])
    places = data.draw(st.lists(st.integers(0, 200), max_size=8))
    assert split(tags, start, cut(text, places)) == whole
    assert split(tags, start, list(text)) == whole
    for part in whole:
        assert tags.opening not in part
        assert tags.closing not in part


def test_a_thousand_cuts_of_a_long_answer() -> None:
    tags, dice = REASONING_PARSERS["qwen3"], random.Random(7)
    text = "<think>\n" + "If a < b, then </b> is no tag. " * 20 + "\n</think>\n\n" + "So < 4. " * 20
    whole = split(tags, Start.OPEN_QUESTION, [text])
    for _ in range(1000):
        places = [dice.randrange(len(text)) for _ in range(dice.randrange(1, 9))]
        assert split(tags, Start.OPEN_QUESTION, cut(text, places)) == whole


@PARSERS
def test_a_call_ends_a_thought_that_was_not_closed(name: str) -> None:
    tags = REASONING_PARSERS[name]
    for mark in tags.call_marks:
        text = f"{tags.opening}Ask < him.\n{mark}f"
        for pieces in ([text], list(text)):
            for keeps, expected in (
                (True, ("Ask < him.", f"{mark}f")),
                (False, (f"Ask < him.\n{mark}f", "")),
            ):
                found = split(tags, Start.OPEN_QUESTION, pieces, keeps_calls=keeps)
                assert found == expected
