"""Incremental parser of server-sent events: bytes in any pieces in, the data of each event out."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator

_LINE = re.compile(r"([^\r\n]*)(\r\n|\n|\r)")


class EventParser:
    """Holds the unfinished line and the data lines of the unfinished event."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._buffer = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[str]:
        """Yield the data of each event that `chunk` completes."""
        self._buffer += self._decoder.decode(chunk)
        position = 0
        while match := _LINE.match(self._buffer, position):
            # A carriage return at the very end may be half of a CRLF: wait for the next piece.
            if match.group(2) == "\r" and match.end() == len(self._buffer):
                break
            position = match.end()
            yield from self._take(match.group(1))
        self._buffer = self._buffer[position:]

    def finish(self) -> Iterator[str]:
        """Yield the last event of a stream that ended without its empty line."""
        yield from self._take(self._buffer.rstrip("\r"))
        yield from self._take("")
        self._buffer = ""

    def _take(self, line: str) -> Iterator[str]:
        if not line:
            if self._data:
                yield "\n".join(self._data)
                self._data = []
            return
        field, _, value = line.partition(":")
        if field == "data":
            self._data.append(value.removeprefix(" "))


def iter_events(chunks: Iterable[bytes]) -> Iterator[str]:
    """The data of each event in a stream of byte chunks."""
    parser = EventParser()
    for chunk in chunks:
        yield from parser.feed(chunk)
    yield from parser.finish()
