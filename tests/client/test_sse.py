from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from app.client.sse import iter_events

STREAM = (
    ': ping\n\nid: 7\nevent: x\ndata: {"a":1}\n\n'
    "data:first\r\ndata: second\r\n\r\n"
    "data\n\n"
    "retry: 10\n\n"
    "data: é€𝄞\r\r"
    "data: [DONE]\n\n"
).encode()
EVENTS = ['{"a":1}', "first\nsecond", "", "é€𝄞", "[DONE]"]


def test_whole_stream_at_once() -> None:
    assert list(iter_events([STREAM])) == EVENTS


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_split_gives_the_same_events(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[a:b] for a, b in itertools.pairwise(edges)]
    assert list(iter_events(pieces)) == EVENTS


def test_one_byte_at_a_time() -> None:
    assert list(iter_events(bytes([byte]) for byte in STREAM)) == EVENTS


def test_event_without_its_last_empty_line() -> None:
    assert list(iter_events([b"data: a\n\ndata: b"])) == ["a", "b"]


def test_nothing_comes_of_nothing() -> None:
    assert list(iter_events([])) == []
    assert list(iter_events([b"\n\n: comment\n\n"])) == []
