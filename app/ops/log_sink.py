"""Keeps a server's output: raw in a private file, known secrets blanked, the last lines in memory.

Does not understand the lines; whoever wants them as they come gives a callback.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

_LINE_END = re.compile(rb"[\r\n]")
_MASK = b"***"
_TAIL_LINES = 200
_CHUNK_BYTES = 1 << 16


def new_log_path(folder: Path, name: str) -> Path:
    """A file name that no other start uses, e.g. `smollm2-135m-20261003-120001.log`."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._") or "server"
    stem = f"{safe}-{time.strftime('%Y%m%d-%H%M%S')}"
    path = folder / f"{stem}.log"
    return path if not path.exists() else folder / f"{stem}-{os.getpid()}.log"


class LogSink:
    """Owns one log file. `drain` runs in a thread of its own until the pipe is closed."""

    def __init__(
        self,
        path: Path,
        *,
        secrets: Sequence[str] = (),
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        self.path = path
        self.write_error: str | None = None
        self._secrets = tuple(secret.encode() for secret in secrets if secret)
        self._on_line = on_line
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._lock = threading.Lock()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._file = os.fdopen(descriptor, "wb", buffering=0)

    def drain(self, pipe: BinaryIO) -> None:
        """Read `pipe` to its end; a line counts when its line feed or carriage return has come."""
        pending = b""
        with pipe, self._file:
            while chunk := os.read(pipe.fileno(), _CHUNK_BYTES):
                pending += chunk
                end = max(pending.rfind(b"\n"), pending.rfind(b"\r")) + 1
                complete, pending = pending[:end], pending[end:]
                self._take(complete)
            self._take(pending)

    def close(self) -> None:
        """Close the file of a server that could not be started."""
        self._file.close()

    def tail(self, count: int) -> list[str]:
        """The last `count` lines."""
        with self._lock:
            return list(self._tail)[-count:]

    def _write(self, data: bytes) -> None:
        """A full disk must not stop the draining, or the server would block on its own log."""
        if self.write_error is not None or not data:
            return
        try:
            self._file.write(data)
        except OSError as error:
            self.write_error = error.strerror

    def _take(self, data: bytes) -> None:
        for secret in self._secrets:
            data = data.replace(secret, _MASK)
        self._write(data)
        lines = [line.decode(errors="replace") for line in _LINE_END.split(data) if line.strip()]
        with self._lock:
            self._tail.extend(lines)
        for line in lines:
            if self._on_line is not None:
                self._on_line(line)
