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
        (r"\bbegins a word", ("begins a word",)),
        (r"\d{1,3} of the files", (" of the files",)),
        (r"[abcdefghij] then this", (" then this",)),
        (r"(?P<what>No architecture is named)", ("No architecture is named",)),
        (r"(?:first choice|second one) it", ("first choice", "second one")),
        (r"(?:first choice|\d) it is", (" it is",)),
        (r"(?:left out at times)? and more", (" and more",)),
        (r"(?:left out at times){0,2}", ()),
        (r"(?!not this one)anything", ("anything",)),
        (r"(?P<quote>['\"])quoted(?P=quote), and so on", (", and so on",)),
        (r"file\(1\): lost and found", ("file(1): lost and found",)),
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
