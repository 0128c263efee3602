"""Follows a log that is still written: new lines as they come, across rotation and truncation.

Polls, since logs lie on network and container file systems too. Knows nothing of the lines.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_CHUNK = 1 << 18
_MAX_LINE = 4 * 1024 * 1024


class FollowedFile:
    """The lines of one file. `poll` never blocks; a file that is gone for a while is waited for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = path.open("rb")
        self._at = 0
        self._pending = ""
        self._decoder = _decoder()

    def __enter__(self) -> FollowedFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def poll(self) -> Iterator[str]:
        """Whole lines that were added since the last call, the rest of a rotated file first."""
        if self._file is not None:
            if os.fstat(self._file.fileno()).st_size < self._at:  # truncated: it begins again
                yield from self._begin(self._file)
            yield from self._read(self._file)
        if self._was_replaced():
            yield from self.rest()
            yield from self._reopen()

    def rest(self) -> Iterator[str]:
        """The last line, if its newline has not come."""
        if self._pending:
            yield self._pending
            self._pending = ""

    def _begin(self, file: BinaryIO) -> Iterator[str]:
        yield from self.rest()
        file.seek(0)
        self._at = 0
        self._decoder = _decoder()

    def _was_replaced(self) -> bool:
        try:
            now = self._path.stat()
        except OSError:
            return False  # between the renaming and the new file
        if self._file is None:
            return True
        was = os.fstat(self._file.fileno())
        return (now.st_dev, now.st_ino) != (was.st_dev, was.st_ino)

    def _reopen(self) -> Iterator[str]:
        try:
            fresh = self._path.open("rb")
        except OSError:
            return
        if self._file is not None:
            yield from self._read(self._file)  # what came between the last look and now
            yield from self.rest()
            self._file.close()
        self._file, self._at, self._decoder = fresh, 0, _decoder()
        yield from self._read(fresh)

    def _read(self, file: BinaryIO) -> Iterator[str]:
        while chunk := file.read(_CHUNK):
            self._at += len(chunk)
            lines = (self._pending + self._decoder.decode(chunk)).split("\n")
            self._pending = lines.pop()
            for line in lines:
                yield line + "\n"
            if len(self._pending) > _MAX_LINE:
                yield from self.rest()


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8-sig")("replace")
