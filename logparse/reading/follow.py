"""Follows a log that is still written: new lines as they come, across rotation and truncation.

Polls, since logs lie on network and container file systems too. Knows nothing of the lines.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import BinaryIO

_CHUNK = 1 << 18
_MAX_LINE = 4 * 1024 * 1024


class FollowedFile:
    """The lines of one file. `poll` never blocks; a file that is not there is waited for."""

    def __init__(
        self, path: Path, *, last_bytes: int | None = None, most_bytes: int | None = None
    ) -> None:
        """With `last_bytes`, of what is there at first only the whole lines at its end are given.
        With `most_bytes`, one poll reads about so much, and leaves the rest for the next.
        """
        self._path = path
        self._last_bytes = last_bytes
        self._most_bytes = most_bytes
        self._file: BinaryIO | None = None
        self._at = 0
        self._pending = ""
        self._decoder = _decoder()

    def __enter__(self) -> FollowedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Raises OSError where `poll` would wait."""
        self._file = self._path.open("rb")
        self._at = 0
        if self._last_bytes is not None:
            self._at = _go_to_last(self._file, self._last_bytes)
            self._last_bytes = None

    def close(self) -> None:
        """Give the file back; another `poll` opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def poll(self) -> Iterator[str]:
        """Whole lines that were added since the last call, the rest of a rotated file first."""
        if self._file is None:
            try:
                self.open()
            except OSError:
                return
        file = self._file
        assert file is not None
        if os.fstat(file.fileno()).st_size < self._at:  # truncated: it begins again
            yield from self.rest()
            file.seek(0)
            self._at, self._decoder = 0, _decoder()
        is_read = yield from self._read(file)
        if is_read and self._was_replaced(file):
            yield from self._reopen(file)

    def rest(self) -> Iterator[str]:
        """The last line, if its newline has not come."""
        if self._pending:
            yield self._pending
            self._pending = ""

    def _was_replaced(self, file: BinaryIO) -> bool:
        try:
            now = self._path.stat()
        except OSError:
            return False  # between the renaming and the new file
        was = os.fstat(file.fileno())
        return (now.st_dev, now.st_ino) != (was.st_dev, was.st_ino)

    def _reopen(self, file: BinaryIO) -> Iterator[str]:
        try:
            fresh = self._path.open("rb")
        except OSError:
            return
        yield from self._read(file)  # what came between the last look and now
        yield from self.rest()
        file.close()
        self._file, self._at, self._decoder = fresh, 0, _decoder()
        yield from self._read(fresh)

    def _read(self, file: BinaryIO) -> Generator[str, None, bool]:
        """Lines up to the end, or to the most that is wanted; whether the end was reached."""
        start = self._at
        while chunk := file.read(_CHUNK):
            self._at += len(chunk)
            lines = (self._pending + self._decoder.decode(chunk)).split("\n")
            self._pending = lines.pop()
            for line in lines:
                yield line + "\n"
            if len(self._pending) > _MAX_LINE:
                yield from self.rest()
            if self._most_bytes is not None and self._at - start >= self._most_bytes:
                return False
        return True


def _go_to_last(file: BinaryIO, num_bytes: int) -> int:
    """To the first beginning of a line among the last bytes; where that is."""
    start = max(0, file.seek(0, os.SEEK_END) - num_bytes)
    file.seek(start)
    if start:  # most likely in the middle of a line
        file.readline()
    return file.tell()


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8-sig")("replace")
