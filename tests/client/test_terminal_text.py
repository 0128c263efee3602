from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.client.terminal_text import (
    EscapeFilter,
    clean_line,
    one_line,
    printable,
    strip_escapes,
)


@pytest.mark.parametrize(
    ("foreign", "safe"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("a\x1b]0;title\x07b", "ab"),
        ("a\x1b]52;c;aGk=\x1b\\b", "ab"),
        ("a\x9b2Jb", "ab"),
        ("a\x1bcb", "ab"),
        ("a\x1b(Bb", "ab"),
        ("bell\x07 back\x08 nul\x00", "bell back nul"),
        ("left\u202eright", "leftright"),
        ("keep\ttabs\nand lines, é, 日本, 👩‍🔧", "keep\ttabs\nand lines, é, 日本, 👩‍🔧"),
    ],
)
def test_strip_escapes(foreign: str, safe: str) -> None:
    assert strip_escapes(foreign) == safe


@given(st.lists(st.integers(0, 40), max_size=6))
def test_filter_over_pieces_equals_the_whole(cuts: list[int]) -> None:
    text = "one\x1b[1;31mtwo\x1b]8;;http://x\x1b\\three\x1b(Bfour"
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    escape_filter = EscapeFilter()
    pieces = [escape_filter.feed(text[a:b]) for a, b in itertools.pairwise(edges)]
    assert "".join(pieces) + escape_filter.flush() == "onetwothreefour"


@given(st.lists(st.text("\x1b[]\\\x07\x9bP;0maé", max_size=8)))
def test_no_escape_byte_ever_passes(pieces: list[str]) -> None:
    escape_filter = EscapeFilter()
    out = "".join([*(escape_filter.feed(piece) for piece in pieces), escape_filter.flush()])
    assert not set(out) & {"\x1b", "\x9b", "\x07"}


def test_a_sequence_that_never_ends_does_not_swallow_the_answer() -> None:
    escape_filter = EscapeFilter()
    out = "".join(escape_filter.feed(piece) for piece in ["\x1b]", "word " * 2000])
    assert out.count("word") == 2000


def test_progress_bar_line_keeps_its_last_state() -> None:
    assert clean_line("load:  0%\rload: 50%\rload: 100%\r\n") == "load: 100%"


def test_a_name_is_one_line_and_keeps_a_mark_where_something_was() -> None:
    name = "VLLM::Engine\ntouch /tmp/x\r\n\x1b]52;c;aGk=\x07\u2028\u202eend"

    assert one_line(name) == "VLLM::Engine touch /tmp/x \ufffd]52;c;aGk=\ufffd \ufffdend"
    assert printable("a\tb\n\x1bc") == "a\tb\n\ufffdc"
    assert one_line("plain é 日本") == "plain é 日本"
