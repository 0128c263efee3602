"""Writes the files of one start's log: `X.log` is the newest part, `X.log.0`... came before.

Beyond the limit the oldest part goes, but the first lines stay in `X.log.head`, and `X.log.gap`
says how much is missing after them. `logparse.reading.log_parts` reads them in that order.
"""

from __future__ import annotations

import io
import os
from collections import deque
from pathlib import Path

from engine.machine.private_files import replace_file
from logparse.reading.log_parts import beside

DEFAULT_LOG_BYTES = 256 << 20
LEAST_LOG_BYTES = 1 << 20
HEAD_LINES = 500
_NUM_PARTS = 8


class RotatingLog:
    """Takes bytes and never raises: what cannot be written is counted, and said once it can be."""

    def __init__(self, path: Path, max_bytes: int = DEFAULT_LOG_BYTES) -> None:
        self.path = path
        self.write_error: str | None = None
        self._max_bytes = max_bytes
        self._old: deque[tuple[Path, int]] = deque()
        self._num_rotations = 0
        self._size = 0
        self._is_line_complete = True
        self._head = _HeadEnd()
        self._kept_head_bytes = 0  # of the file with the first lines, once there is one
        self._dropped_bytes = 0
        self._unwritten_bytes = 0
        self._unsaid_bytes = 0
        self._file: io.FileIO | None = None
        try:
            self._open()
        except OSError as error:
            self._note(error, 0)

    @property
    def lost_bytes(self) -> int:
        """What was dropped past the limit or could not be written at all."""
        return self._dropped_bytes + self._unwritten_bytes

    def write(self, data: bytes) -> None:
        """Append; a full disk must not stop the draining, or the server would block on its log."""
        while data:
            piece = data
            try:
                piece = self._next_piece(data)
                self._say_what_is_missing()
                self._append(piece)
            except OSError as error:
                self._note(error, len(piece))
            data = data[len(piece) :]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _open(self) -> io.FileIO:
        """The newest part; made where a full disk has not allowed it so far."""
        if self._file is None:
            self._file = _create(self.path)
        return self._file

    def _note(self, error: OSError, num_bytes: int) -> None:
        self.write_error = error.strerror or str(error)
        self._unsaid_bytes += num_bytes
        self._unwritten_bytes += num_bytes

    def _next_piece(self, data: bytes) -> bytes:
        """What goes into the file now: parts end with a line, unless it is longer than a part."""
        limit = self._limit()
        if self._size >= limit and (self._is_line_complete or self._size >= 2 * limit):
            self._rotate()
            limit = self._limit()
        room = limit - self._size
        if room <= 0:  # the rest of a line
            return data[: data.find(b"\n") + 1 or limit]
        if len(data) <= room:
            return data
        return data[: data.rfind(b"\n", 0, room) + 1 or room]

    def _limit(self) -> int:
        """The first lines are not divided, as far as half of a log holds them."""
        is_head = self._num_rotations == 0 and not self._head.is_complete
        return self._max_bytes // (2 if is_head else _NUM_PARTS)

    def _append(self, piece: bytes) -> None:
        written = 0
        while written < len(piece):
            written += self._open().write(piece[written:]) or 0
        self._size += len(piece)
        self._is_line_complete = piece.endswith(b"\n")
        if self._num_rotations == 0:
            self._head.take(piece)

    def _say_what_is_missing(self) -> None:
        if self._unsaid_bytes:
            what = f"{self._unsaid_bytes} bytes of this log are missing here: {self.write_error}"
            self._append(f"\nstoker: {what}\n".encode())
            self._unsaid_bytes = 0

    def _rotate(self) -> None:
        old = beside(self.path, str(self._num_rotations))
        self.path.rename(old)
        try:
            fresh = _create(self.path)
        except OSError:
            old.rename(self.path)
            raise
        self.close()
        self._file = fresh
        self._old.append((old, self._size))
        self._num_rotations, self._size = self._num_rotations + 1, 0
        most = self._max_bytes - self._max_bytes // _NUM_PARTS  # one part is to come
        while self._old and self._kept_head_bytes + sum(size for _, size in self._old) > most:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        part, size = self._old[0]
        if part == beside(self.path, "0"):
            self._keep_head(part)
            size -= self._kept_head_bytes
        part.unlink()
        self._old.popleft()
        self._dropped_bytes += size
        what = f"{self._dropped_bytes} bytes are left out here, a log has {self._max_bytes} at most"
        replace_file(beside(self.path, "gap"), f"stoker: {what} (--log-max-bytes)\n".encode())

    def _keep_head(self, part: Path) -> None:
        with part.open("rb") as file:
            replace_file(beside(self.path, "head"), file.read(self._head.num_bytes))
        self._kept_head_bytes = self._head.num_bytes


class _HeadEnd:
    """Where the first lines end."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._num_lines = 0

    @property
    def is_complete(self) -> bool:
        return self._num_lines >= HEAD_LINES

    def take(self, data: bytes) -> None:
        count = data.count(b"\n")
        if self.is_complete:
            return
        if self._num_lines + count < HEAD_LINES:
            self.num_bytes += len(data)
        else:
            end = 0
            for _ in range(HEAD_LINES - self._num_lines):
                end = data.index(b"\n", end) + 1
            self.num_bytes += end
        self._num_lines += count


def _create(path: Path) -> io.FileIO:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    return io.FileIO(descriptor, "wb")
