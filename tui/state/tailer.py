"""Follows a growing text file by polling: complete new lines, made safe for the terminal.

Survives a file that does not exist yet, is cut to nothing, or is replaced by a new one: what was
written into the old one until then is read first.
"""

from __future__ import annotations

import os
from pathlib import Path

from app.client.terminal_text import clean_line

FIRST_READ_BYTES = 64 * 1024
_MOST_BYTES_PER_READ = 1024 * 1024


class LogTailer:
    """`read_new` gives the lines since the last call; the first call gives the end of the file.

    The file stays open between the calls, so that its end is there after it was renamed.
    """

    def __init__(self, path: Path, first_read_bytes: int = FIRST_READ_BYTES) -> None:
        self._path = path
        self._first_read_bytes = first_read_bytes
        self._fd: int | None = None
        self._offset = 0
        self._partial = b""

    def read_new(self) -> list[str]:
        """Complete lines that have appeared, oldest first."""
        data = self._first_read() if self._fd is None else self._read_on(self._fd)
        *lines, self._partial = (self._partial + data).split(b"\n")
        return [clean_line(line.decode("utf-8", "replace")) for line in lines]

    def close(self) -> None:
        """Give the file back; a later `read_new` begins anew."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __del__(self) -> None:
        self.close()

    def _first_read(self) -> bytes:
        if not self._open():
            return b""
        assert self._fd is not None
        size = os.fstat(self._fd).st_size
        start = max(0, size - self._first_read_bytes)
        data = os.pread(self._fd, size - start, start)
        self._offset = start + len(data)
        # Starting in the middle of the file means starting in the middle of a line.
        return data.partition(b"\n")[2] if start else data

    def _open(self) -> bool:
        try:
            self._fd = os.open(self._path, os.O_RDONLY)
        except OSError:
            return False  # not there yet, or between rotation and re-creation
        self._offset = 0
        return True

    def _read_on(self, fd: int) -> bytes:
        status = os.fstat(fd)
        if status.st_size < self._offset:
            self._offset, self._partial = 0, b""
        data = self._pread(fd)
        if data or not self._is_replaced(status):
            return data
        # The old file has been read to its end; a line that was cut there ends there.
        self.close()
        rest = b"\n" if self._partial else b""
        if not self._open():
            return rest
        assert self._fd is not None
        return rest + self._pread(self._fd)

    def _pread(self, fd: int) -> bytes:
        data = os.pread(fd, _MOST_BYTES_PER_READ, self._offset)
        self._offset += len(data)
        return data

    def _is_replaced(self, status: os.stat_result) -> bool:
        try:
            now = os.stat(self._path)
        except OSError:
            return False
        return (now.st_dev, now.st_ino) != (status.st_dev, status.st_ino)
