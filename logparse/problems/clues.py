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
_LONG = re.compile(r"(?<!\\)(?:[^\\()\[{|^$.?*+]|\\[^A-Za-z0-9]){8,}(?![?*{])")  # as _LITERAL
_ENOUGH = 8  # letters: no longer clue is looked for
_OPENING = re.compile(r"[(\[{]")
_CLASS = r"\[\^?\]?(?:[^\]\\]|\\.)*\]"  # a ] that comes first is a member
_PIECE = re.compile(
    rf"(?P<literal>{_LITERAL})|\\.|{_CLASS}|\(\?P=\w+\)|(?P<open>\((?:\?(?:P<\w+>|[:=!]|<[=!]))?)"
    r"|(?P<close>\))(?P<optional>[?*]|\{[^}]*\})?|(?P<bar>\|)|\{[^}]*\}|.",
    re.DOTALL,
)
_MARKS = re.compile(rf"\\.|{_CLASS}|[()|]", re.DOTALL)
_LOOKS_AROUND = ("(?=", "(?!", "(?<=", "(?<!")
_MOST_CHOICES = 8
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


class CluedAlternatives:
    """What one long pattern would say: of its alternatives only those with their clue are tried."""

    def __init__(self, *sources: str) -> None:
        """Each is a regular expression for the beginning of a text."""
        self._sources = sources
        self._by_clue: tuple[tuple[str, str], ...] = ()

    def begin(self, text: str) -> bool:
        """Whether one of them matches at the beginning of the text."""
        if not self._by_clue:
            self._by_clue = tuple(
                (clue, source) for source in self._sources for clue in _clues_of(source) or ("",)
            )
        for clue, source in self._by_clue:  # noqa: SIM110 - any() is slower, and many lines ask
            if clue in text and compiled(source).match(text):
                return True
        return False


def clued(source: str) -> CluedPattern:
    """The pattern with one clue for each of its alternatives, if each has one."""
    return CluedPattern(source)


Clues = tuple[str, ...]  # one of them is in each text that matches; none known if it is empty


@functools.cache
def _clues_of(source: str) -> Clues:
    first, is_whole = _LONG.search(source), not _is_split(source)
    if is_whole and first is not None and not _OPENING.search(source, 0, first.start()):
        return (_without_escapes(first[0]),)  # most have one: a tenth of the way below
    clues = _needed_in(source, is_whole)
    return tuple(map(_without_escapes, clues)) if _shortest(clues) >= _SHORTEST else ()


def _is_split(source: str) -> bool:
    """Whether there is a `|` that is in no group."""
    depth = 0
    for mark in _MARKS.findall(source) if "|" in source else ():
        if mark == "|" and not depth:
            return True
        depth += (mark == "(") - (mark == ")")
    return False


def _needed_in(source: str, is_whole: bool) -> Clues:
    """Of what stands side by side the longest literal, of alternatives the one of each.

    With `is_whole` there are no alternatives outside of groups.
    """
    around: list[tuple[str, list[Clues], Clues]] = []  # of the groups that are open
    opened, others, best = "", list[Clues](), Clues()
    for piece in _PIECE.finditer(source):
        kind = piece.lastgroup
        if kind == "literal":
            best = _better(best, (piece["literal"],))
            if is_whole and not around and len(best[0]) >= _ENOUGH:
                return best
        elif kind == "bar":
            others.append(best)
            best = ()
        elif kind == "open":
            around.append((opened, others, best))
            opened, others, best = piece["open"], [], ()
        elif kind == "close" or kind == "optional":
            is_needed = kind == "close" and opened not in _LOOKS_AROUND
            inside = _all_of([*others, best]) if is_needed else ()
            opened, others, best = around.pop()
            best = _better(best, inside)
    return _all_of([*others, best])


def _all_of(alternatives: list[Clues]) -> Clues:
    found = tuple(clue for clues in alternatives for clue in clues)
    return found if all(alternatives) and len(found) <= _MOST_CHOICES else ()


def _better(one: Clues, other: Clues) -> Clues:
    return other if _shortest(other) > _shortest(one) else one


def _shortest(clues: Clues) -> int:
    return min(map(len, clues), default=0)


def _without_escapes(literal: str) -> str:
    return _ESCAPED.sub(r"\1", literal) if "\\" in literal else literal
