"""Lines that a terminal cut at its width, put together again where that can be told.

Knows the width that the cuts show and where a line goes on; `restore` says when to ask.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from logparse.reading.line import split_line

# Between the pieces of a joined line. No physical line holds it, so line numbers stay true.
WRAP = "\r\n"

_NARROWEST, _WIDEST = 60, 400
_FEWEST = 3  # full lines
_MAX_PIECES = 200
# What begins a line of its own though it has no header.
_BEGINNING = re.compile(
    r"\s*$|\s{1,8}File \"|Traceback \(|\S{0,60}[@~]\S{0,60}[$#%] |```|~~~|usage: |\[rank\d"
    r"|(?:During handling of|The above exception)"
)


def wrap_width(lines: list[str]) -> int | None:
    """The columns that the lines were cut at; None when they were not.

    Nothing may be longer, several different lines must be just as long, and nearly all of those
    must go on in a line that begins like the middle of one.
    """
    texts = [line.rstrip("\r\n") for line in lines]
    width = max(map(len, texts), default=0)
    if not _NARROWEST <= width <= _WIDEST:
        return None
    full = [place for place, text in enumerate(texts[:-1]) if len(text) == width]
    if len({texts[place] for place in full}) < _FEWEST or 20 * len(full) < len(texts):
        return None
    begun = sum(_begins(texts[place + 1]) for place in full)
    return width if 5 * begun <= len(full) else None


class Joiner:
    """Makes the pieces of lines that were cut at a width one again, as they come."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._pieces: list[str] = []  # of the line that may go on

    def add(self, line: str) -> Iterator[str]:
        """The whole lines that this one ends or is, with `WRAP` where they were cut."""
        text = line.rstrip("\r\n")
        if self._pieces and not _goes_on(self._pieces, text, self._width):
            yield from self.rest()
        self._pieces.append(text)
        if not _may_go_on(self._pieces, self._width):
            yield from self.rest()

    def rest(self) -> Iterator[str]:
        """The line that waited for its next piece."""
        if self._pieces:
            yield _whole(self._pieces, self._width)
            self._pieces = []


def joined(lines: Iterable[str], width: int) -> Iterator[str]:
    """The lines; those cut at `width` become one again, with `WRAP` where they were cut."""
    joiner = Joiner(width)
    for line in lines:
        yield from joiner.add(line)
    yield from joiner.rest()


def _may_go_on(pieces: list[str], width: int) -> bool:
    return width - len(pieces[-1]) in (0, 1) and len(pieces) < _MAX_PIECES


def _goes_on(pieces: list[str], text: str, width: int) -> bool:
    """Whether `text` is the next piece; where a cut fell on a space, a copy may have lost it."""
    missing = width - len(pieces[-1])
    if _begins(text) or (text.startswith("  ") and (missing or pieces[0].startswith(" "))):
        return False
    return not missing or len(pieces) > 1 or split_line(pieces[0]).level is not None


def _begins(text: str) -> bool:
    """Whether the text cannot be the middle of a line."""
    if _BEGINNING.match(text):
        return True
    line = split_line(text)
    return line.level is not None or line.process is not None or line.stamp is not None


def _whole(pieces: list[str], width: int) -> str:
    """With the spaces that were lost at the cuts."""
    return WRAP.join((*(piece.ljust(width) for piece in pieces[:-1]), pieces[-1]))
