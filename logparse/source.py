"""Bytes to lines: newline is the only separator, so that carriage returns and line numbers stay
true.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

_MAX_LINE = 4 * 1024 * 1024  # a longer line is read in pieces


def decoded_lines(stream: BinaryIO) -> Iterator[str]:
    """Lines of a binary stream; bytes that are no UTF-8 become replacement characters."""
    first = stream.readline(_MAX_LINE)
    yield from _first_line(first)
    while line := stream.readline(_MAX_LINE):
        yield line.decode("utf-8", "replace")


def _first_line(line: bytes) -> Iterator[str]:
    if line:
        yield line.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
