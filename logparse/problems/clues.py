"""Patterns that are compiled when a text holds one of their literal parts, and not before.

Nearly all of the patterns of causes are never needed; without this they would cost most of the time
of a first explanation.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

_SHORTEST = 4
_QUANTIFIERS = frozenset("?*{")


@dataclass(frozen=True, slots=True)
class CluedPattern:
    """`search` looks for the clues first; without clues it always tries the pattern."""

    source: str

    @property
    def clues(self) -> tuple[str, ...]:
        """One for each alternative, if each has one; found when they are first asked for."""
        return _clues_of(self.source)

    def search(self, text: str) -> re.Match[str] | None:
        """As re.search."""
        clues = self.clues
        for clue in clues:
            if clue in text:
                break
        else:
            if clues:
                return None
        return re.compile(self.source).search(text)  # re keeps what it compiled


def clued(source: str) -> CluedPattern:
    """The pattern with one clue for each of its alternatives, if each has one."""
    return CluedPattern(source)


@functools.cache
def _clues_of(source: str) -> tuple[str, ...]:
    found = [_longest_literal(part) for part in _alternatives(source)]
    return tuple(found) if all(len(clue) >= _SHORTEST for clue in found) else ()


def _alternatives(source: str) -> list[str]:
    """The source split at each `|` that is in no group and no class."""
    parts, start, at = [], 0, 0
    while at < len(source):
        if source[at] == "|":
            parts.append(source[start:at])
            start = at + 1
        at = _end_of_item(source, at)
    return [*parts, source[start:]]


def _longest_literal(source: str) -> str:
    runs, at = [""], 0
    while at < len(source):
        end = _end_of_item(source, at)
        text = _literal(source[at:end])
        if text is None or source[end : end + 1] in _QUANTIFIERS:
            runs.append("")
        else:
            runs[-1] += text
        at = end
    return max(runs, key=len)


def _literal(item: str) -> str | None:
    """The character that an item stands for, None when it may stand for several."""
    if item.startswith("\\"):
        return None if item[1:].isalnum() else item[1:]
    return None if len(item) > 1 or item in "^$.?*+{|" else item


def _end_of_item(source: str, at: int) -> int:
    """Behind the character, escape, class, group or quantifier that begins at `at`."""
    char = source[at]
    if char == "\\":
        return at + 2
    if char == "[":
        first = at + 2 if source[at + 1] != "^" else at + 3  # a ] that comes first is a member
        return _find(source, first, "]") + 1
    if char == "{":
        return source.index("}", at) + 1
    return _end_of_group(source, at) if char == "(" else at + 1


def _end_of_group(source: str, at: int) -> int:
    at += 1
    while source[at] != ")":
        at = _end_of_item(source, at)
    return at + 1


def _find(source: str, at: int, wanted: str) -> int:
    while source[at] != wanted:
        at += 2 if source[at] == "\\" else 1
    return at
