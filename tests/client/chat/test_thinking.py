"""The thinking at the start of an answer is kept apart, however the stream is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.client.chat.thinking import ThinkSplitter


def split(*pieces: str) -> tuple[str, str]:
    splitter = ThinkSplitter()
    parts = [*(splitter.feed(piece) for piece in pieces), splitter.flush()]
    return "".join(text for text, _ in parts), "".join(thought for _, thought in parts)


@pytest.mark.parametrize(
    ("whole", "text", "reasoning"),
    [
        ("<think>hm</think>yes", "yes", "hm"),
        ("\n <think>\nhm\n</think>\n\nyes", "yes", "\nhm\n"),
        ("<think>hm", "", "hm"),
        ("<think></think>yes", "yes", ""),
        ("<think>a </thin b</think>c", "c", "a </thin b"),
        ("plain <think>x</think>", "plain <think>x</think>", ""),
        ("<thinker>", "<thinker>", ""),
        ("<thi", "<thi", ""),
        (" plain", " plain", ""),
    ],
)
def test_thinking_is_apart_however_it_is_cut(whole: str, text: str, reasoning: str) -> None:
    assert split(whole) == (text, reasoning)
    assert split(*whole) == (text, reasoning)


@given(st.lists(st.sampled_from(["<think>", "</think>", "<thi", "nk>", "</", "a", "\n"])))
def test_cuts_never_change_the_split(pieces: list[str]) -> None:
    whole = "".join(pieces)
    text, reasoning = split(*whole)
    assert split(*pieces) == (text, reasoning)
    if not whole.lstrip().startswith("<think>"):
        assert (text, reasoning) == (whole, "")
