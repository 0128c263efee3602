"""Marks in a text that comes in pieces: how much of its end may be the beginning of one."""

from __future__ import annotations

from collections.abc import Sequence


def num_begun(text: str, marks: Sequence[str]) -> int:
    """How many characters at the end of `text` may begin a mark; a whole one is not counted."""
    longest = max(map(len, marks), default=1) - 1
    sizes = range(min(len(text), longest), 0, -1)
    return next((size for size in sizes if _begins_one(text[-size:], marks)), 0)


def _begins_one(end: str, marks: Sequence[str]) -> bool:
    return any(len(end) < len(mark) and mark.startswith(end) for mark in marks)
