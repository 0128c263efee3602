"""Follows a growing text file by polling: complete new lines, made safe for the terminal.

Survives a file that does not exist yet, is cut to nothing, or is replaced by a new one.
"""

from __future__ import annotations

import os
from pathlib import Path

from app.client.terminal_text import clean_line

FIRST_READ_BYTES = 64 * 1024
_MOST_BYTES_PER_READ = 1024 * 1024


class LogTailer:
    """`read_new` gives the lines since the last call; the first call gives the end of the file."""

    def __init__(self, path: Path, first_read_bytes: int = FIRST_READ_BYTES) -> None:
        self._path = path
        self._first_read_bytes = first_read_bytes
        self._offset: int | None = None
        self._inode = 0
        self._partial = b""

    def read_new(self) -> list[str]:
        """Complete lines that have appeared, oldest first."""
        try:
            with self._path.open("rb") as file:
                data = self._read(file.fileno())
        except OSError:
            return []  # not there yet, or between rotation and re-creation
        *lines, self._partial = (self._partial + data).split(b"\n")
        return [clean_line(line.decode("utf-8", "replace")) for line in lines]

    def _read(self, fd: int) -> bytes:
        status = os.fstat(fd)
        if self._offset is None:
            return self._first_read(fd, status)
        if status.st_ino != self._inode or status.st_size < self._offset:
            self._inode, self._offset, self._partial = status.st_ino, 0, b""
        data = os.pread(fd, _MOST_BYTES_PER_READ, self._offset)
        self._offset += len(data)
        return data

    def _first_read(self, fd: int, status: os.stat_result) -> bytes:
        start = max(0, status.st_size - self._first_read_bytes)
        data = os.pread(fd, status.st_size - start, start)
        self._inode, self._offset = status.st_ino, start + len(data)
        # Starting in the middle of the file means starting in the middle of a line.
        return data.partition(b"\n")[2] if start else data
