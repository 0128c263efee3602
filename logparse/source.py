"""Bytes to lines: newline is the only separator, so that carriage returns and line numbers stay
true. Rotated logs (gzip) and those of PowerShell's `>` (UTF-16) are read as they lie.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from typing import BinaryIO, TextIO, cast

_MAX_LINE = 4 * 1024 * 1024  # a longer line is read in pieces
_GZIP = b"\x1f\x8b\x08"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def decoded_lines(stream: BinaryIO) -> Iterator[str]:
    """Lines of a binary stream; bytes that are no text become replacement characters."""
    first = stream.readline(_MAX_LINE)
    if first.startswith(_GZIP):
        unpacked = gzip.GzipFile(fileobj=cast(BinaryIO, _Rejoined(first, stream)))
        yield from _until_damage(decoded_lines(cast(BinaryIO, unpacked)))
    elif first.startswith(_UTF16):
        buffered = io.BufferedReader(_Rejoined(first, stream))
        yield from _lines(io.TextIOWrapper(buffered, "utf-16", "replace", newline="\n"))
    elif first:
        yield first.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
        while line := stream.readline(_MAX_LINE):
            yield line.decode("utf-8", "replace")


def _lines(text: TextIO) -> Iterator[str]:
    while line := text.readline(_MAX_LINE):
        yield line


def _until_damage(lines: Iterator[str]) -> Iterator[str]:
    """A gzip file that is still being written, or cut off, is read as far as it goes."""
    try:
        yield from lines
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return


class _Rejoined(io.RawIOBase):
    """A stream with the bytes put back that were read to see what it is."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        super().__init__()
        self._head = head
        self._rest = rest

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: object) -> int:
        """Fill `buffer`, the head first."""
        view = memoryview(cast(bytearray, buffer))
        data = self._head[: len(view)] or self._rest.read(len(view))
        self._head = self._head[len(view) :]
        view[: len(data)] = data
        return len(data)
