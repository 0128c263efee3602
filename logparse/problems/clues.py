"""Patterns that are compiled when a text holds one of their literal parts, and not before.

Nearly all of the patterns of causes are never needed; without this they would cost most of the time
of a first explanation.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

_SHORTEST = 4
_LITERAL = r"(?:[^\\()\[{|^$.?*+]|\\[^A-Za-z0-9])+(?![?*{])"  # without one that may be missing
_CLASS = r"\[\^?\]?(?:[^\]\\]|\\.)*\]"  # a ] that comes first is a member
_PIECE = re.compile(rf"({_LITERAL})|\\.|{_CLASS}|\{{[^}}]*\}}|.", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


@functools.cache
def compiled(source: str, flags: int = 0) -> re.Pattern[str]:
    """As re.compile, which forgets patterns beyond 512: some would be compiled at each line."""
    return re.compile(source, flags)


@dataclass(frozen=True, slots=True)
class CluedPattern:
    """`search` looks for the clues first; without clues it always tries the pattern."""

    source: str

    @property
    def clues(self) -> tuple[str, ...]:
        """One for each alternative, if each has one; found when they are first asked for."""
        return _clues_of(self.source)

    def search(self, text: str) -> re.Match[str] | None:
        """As re.search; the clues are looked for first, which is cheap."""
        clues = self.clues
        for clue in clues:
            if clue in text:
                break
        else:
            if clues:
                return None
        return compiled(self.source).search(text)


def clued(source: str) -> CluedPattern:
    """The pattern with one clue for each of its alternatives, if each has one."""
    return CluedPattern(source)


@functools.cache
def _clues_of(source: str) -> tuple[str, ...]:
    found = _longest_literals(source)
    return tuple(found) if all(len(clue) >= _SHORTEST for clue in found) else ()


def _longest_literals(source: str) -> list[str]:
    """Of each alternative, split at each `|` that is in no group and no class."""
    found, longest, depth = [], "", 0
    for piece in _PIECE.finditer(source):
        literal = piece[1]
        if literal is not None:
            if not depth and len(literal) > len(longest):
                longest = literal
        elif (mark := piece[0]) == "(":
            depth += 1
        elif mark == ")":
            depth -= 1
        elif mark == "|" and not depth:
            found.append(_without_escapes(longest))
            longest = ""
    return [*found, _without_escapes(longest)]


def _without_escapes(literal: str) -> str:
    return _ESCAPED.sub(r"\1", literal)
