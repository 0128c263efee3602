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


def joined(lines: Iterable[str], width: int) -> Iterator[str]:
    """The lines; those cut at `width` become one again, with `WRAP` where they were cut."""
    pieces: list[str] = []
    for line in lines:
        text = line.rstrip("\r\n")
        if pieces and not _goes_on(pieces, text, width):
            yield _whole(pieces, width)
            pieces = []
        pieces.append(text)
    if pieces:
        yield _whole(pieces, width)


def _goes_on(pieces: list[str], text: str, width: int) -> bool:
    """Whether `text` is the next piece; where a cut fell on a space, a copy may have lost it."""
    missing = width - len(pieces[-1])
    if missing not in (0, 1) or len(pieces) >= _MAX_PIECES:
        return False
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
