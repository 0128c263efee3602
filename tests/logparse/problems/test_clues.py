"""A clue must never hide a match: it is a part of every text that the pattern can match."""

from __future__ import annotations

import pytest

from logparse.problems.clues import clued


@pytest.mark.parametrize(
    ("source", "clues"),
    [
        (r"No CUDA GPUs", ("No CUDA GPUs",)),
        (r"abcd|efgh+i", ("abcd", "efgh")),
        (r"(?:a|b)cdefg", ("cdefg",)),
        (r"abcd (?P<x>\d{1,3}) longer text", (" longer text",)),
        (r"abcd[|)\]]efghi", ("efghi",)),
        (r"config\.json not", ("config.json not",)),
        (r"maybes?texts?", ("maybe",)),
        (r"(?:a|b)", ()),
        (r"abcd|\d+", ()),
        (r"^exact$", ("exact",)),
    ],
)
def test_clues(source: str, clues: tuple[str, ...]) -> None:
    assert clued(source).clues == clues


def test_search_finds_what_the_pattern_finds() -> None:
    pattern = clued(r"GPU (?P<number>\d) is lost|card gone")
    found = pattern.search("the GPU 3 is lost now")
    assert found is not None
    assert found["number"] == "3"
    assert pattern.search("card gone") is not None
    assert pattern.search("the GPU x is lost") is None
    assert pattern.search("nothing") is None
