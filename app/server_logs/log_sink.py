"""Keeps a server's output: raw in private files, known secrets blanked, the last lines in memory.

Does not understand the lines. Whoever wants them as they come gives a callback; it runs in a thread
of its own, so that it may be slower than the server prints: nothing makes the server wait.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from app.paths import file_name
from app.server_logs.log_files import DEFAULT_LOG_BYTES, RotatingLog

_LINE_END = re.compile(rb"[\r\n]")
_MASK = b"***"
_TAIL_LINES = 200
_TAIL_COLUMNS = 4000
_CHUNK_BYTES = 1 << 20
_LONGEST_LINE = 1 << 20  # a longer one is told in pieces; the file has it whole
_BACKLOG_BYTES = 16 << 20  # what a slow reader may be behind; it misses what is older


def new_log_path(folder: Path, name: str) -> Path:
    """A file name that no other start uses, e.g. `smollm2-135m-20261003-120001.log`."""
    stem = f"{file_name(name)}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, number = folder / f"{stem}.log", 1
    while path.exists():
        number += 1
        path = folder / f"{stem}.{number}.log"
    return path


class LogSink:
    """Owns one log. `drain` runs in a thread of its own until the pipe is closed."""

    def __init__(
        self,
        path: Path,
        *,
        secrets: Sequence[str] = (),
        on_line: Callable[[str], None] | None = None,
        max_bytes: int = DEFAULT_LOG_BYTES,
    ) -> None:
        self.path = path
        self._mask = _SecretMask(secrets)
        self._log = RotatingLog(path, max_bytes)
        self._feed = _LineFeed(on_line)

    @property
    def write_error(self) -> str | None:
        """Why parts of the log could not be written, if so."""
        return self._log.write_error

    @property
    def lost_bytes(self) -> int:
        """What is no longer, or never was, in the files."""
        return self._log.lost_bytes

    def drain(self, pipe: BinaryIO) -> None:
        """Read `pipe` to its end; a line counts when its line feed or carriage return has come."""
        _widen(pipe)
        self._feed.start()
        with pipe:
            while chunk := os.read(pipe.fileno(), _CHUNK_BYTES):
                self._take(self._mask.feed(chunk))
        self._take(self._mask.rest())
        self._log.close()
        self._feed.finish()

    def close(self) -> None:
        """Close the file of a server that could not be started."""
        self._log.close()

    def tail(self, count: int) -> list[str]:
        return self._feed.tail(count)

    def _take(self, data: bytes) -> None:
        if data:
            self._log.write(data)
            self._feed.put(data)


class _SecretMask:
    """Blanks secrets in a stream, also one that is cut by two reads."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = sorted({s.encode() for s in secrets if s}, key=len, reverse=True)
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        data = self._held + data
        for secret in self._secrets:
            data = data.replace(secret, _MASK)
        num_held = max((_begun(data, secret) for secret in self._secrets), default=0)
        self._held = data[len(data) - num_held :]
        return data[: len(data) - num_held]

    def rest(self) -> bytes:
        rest, self._held = self._held, b""
        return rest


def _begun(data: bytes, secret: bytes) -> int:
    """How many bytes at the end of `data` may be the beginning of `secret`."""
    most = min(len(secret) - 1, len(data))
    return next((n for n in range(most, 0, -1) if data.endswith(secret[:n])), 0)


@dataclass(frozen=True, slots=True)
class _Gap:
    """Something was left out here. `in_line`: what follows begins with the rest of a line."""

    in_line: bool


class _LineFeed:
    """Cuts what is put into lines and hands them on, in its own thread."""

    def __init__(self, on_line: Callable[[str], None] | None) -> None:
        self._on_line = on_line
        self._blocks: deque[bytes | _Gap] = deque()
        self._num_bytes = 0
        self._is_over = False
        self._changed = threading.Condition()
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._thread = threading.Thread(target=self._run, name="log-lines", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, block: bytes) -> None:
        with self._changed:
            self._blocks.append(block)
            self._num_bytes += len(block)
            if self._num_bytes > _BACKLOG_BYTES:
                self._forget_oldest()
            self._changed.notify()

    def finish(self) -> None:
        """Return when the last line is told."""
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self._thread.join()

    def tail(self, count: int) -> list[str]:
        with self._changed:
            return list(self._tail)[-count:]

    def _forget_oldest(self) -> None:
        gap = _Gap(in_line=False)
        while self._num_bytes > _BACKLOG_BYTES:
            oldest = self._blocks.popleft()
            if isinstance(oldest, _Gap):
                gap = oldest
                continue
            self._num_bytes -= len(oldest)
            gap = _Gap(in_line=not oldest.endswith((b"\n", b"\r")))
        self._blocks.appendleft(gap)

    def _run(self) -> None:
        pending, is_cut = b"", False
        while (block := self._next()) != b"":
            if isinstance(block, _Gap):
                pending, is_cut = b"", block.in_line
                continue
            pending += block
            if is_cut:
                pending = pending[_first_end(pending) :]
                is_cut = not pending
            end = max(pending.rfind(b"\n"), pending.rfind(b"\r")) + 1
            if len(pending) - end > _LONGEST_LINE:
                end = len(pending)
            self._tell(pending[:end])
            pending = pending[end:]
        self._tell(pending)

    def _next(self) -> bytes | _Gap:
        """The next block; empty at the end."""
        with self._changed:
            while not self._blocks and not self._is_over:
                self._changed.wait()
            block = self._blocks.popleft() if self._blocks else b""
            self._num_bytes -= 0 if isinstance(block, _Gap) else len(block)
            return block

    def _tell(self, data: bytes) -> None:
        lines = [line.decode(errors="replace") for line in _LINE_END.split(data) if line.strip()]
        with self._changed:
            self._tail.extend(line[:_TAIL_COLUMNS] for line in lines)
        for line in lines:
            if self._on_line is not None:
                self._on_line(line)


def _first_end(data: bytes) -> int:
    """Behind the first end of a line; the length where there is none."""
    found = _LINE_END.search(data)
    return len(data) if found is None else found.end()


def _widen(pipe: BinaryIO) -> None:
    """Room for a megabyte: while another thread has the interpreter, the server prints on."""
    if sys.platform == "linux":
        import fcntl

        with contextlib.suppress(OSError):  # not a pipe, or this user has too many
            fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _CHUNK_BYTES)
