"""Standard output and error of a supervisor: printing never fails and never waits.

A terminal that is gone, a pipe that nobody reads, a full disk: the server must not end or stand
still because of them. A thread writes; what it cannot write is left out.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TextIO

_MOST_PENDING = 256 << 10  # characters; what comes while so much waits is left out
_FLUSH_S = 0.2  # keeps two streams of one terminal in order, and is not worth more
_LAST_FLUSH_S = 1.0
_GONE = (errno.EPIPE, errno.EIO, errno.EBADF)  # unlike a full disk, these stay
NOBODY_READS = "nobody reads standard output any more; the server goes on"
NOT_WRITTEN = "standard output cannot be written ({}); the server goes on"


class SteadyStream(io.TextIOBase):
    """In place of `target`, whose descriptor it writes to. `on_trouble` is called once."""

    def __init__(self, target: TextIO, on_trouble: Callable[[str], None]) -> None:
        self._target = target
        self._descriptor = target.fileno()
        self._on_trouble: Callable[[str], None] | None = on_trouble
        self._pending = ""
        self._is_writing = False
        self._is_gone = False
        self._is_stuck = False
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="output", daemon=True).start()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The target's; rich asks before it draws lines."""
        return self._target.encoding or "utf-8"

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        """Whether the target is a terminal now."""
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        """Leave the text to the thread."""
        with self._changed:
            if not self._is_gone and len(self._pending) < _MOST_PENDING:
                self._pending += text
                self._changed.notify_all()
        return len(text)

    def flush(self) -> None:
        """Wait a moment until all is written; not for a reader that did not read the last time."""
        self.drain(0.0 if self._is_stuck else _FLUSH_S)

    def drain(self, timeout_s: float) -> None:
        """Wait until all is written, or for so long."""
        with self._changed:
            is_done = self._changed.wait_for(self._is_idle, timeout_s)
            self._is_stuck = not is_done

    def _is_idle(self) -> bool:
        return not self._pending and not self._is_writing

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: bool(self._pending))
                text, self._pending = self._pending, ""
                self._is_writing = True
            try:
                self._put(text.encode(self.encoding, "replace"))
            except OSError as error:
                self._note(error)

    def _put(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._descriptor, data) :]

    def _note(self, error: OSError) -> None:
        self._is_gone = error.errno in _GONE
        on_trouble, self._on_trouble = self._on_trouble, None
        if on_trouble is not None:
            why = error.strerror or str(error)
            on_trouble(NOBODY_READS if self._is_gone else NOT_WRITTEN.format(why))


@contextlib.contextmanager
def steady_output() -> Iterator[None]:
    """`sys.stdout` and `sys.stderr` are steady inside; trouble with stdout is told on stderr."""
    if isinstance(sys.stdout, SteadyStream):
        yield
        return
    before = sys.stdout, sys.stderr
    sys.stdout.flush()
    sys.stderr.flush()
    talk = SteadyStream(sys.stderr, lambda why: None)
    data = SteadyStream(sys.stdout, lambda why: print(f"note: {why}", file=talk))
    sys.stdout, sys.stderr = data, talk
    try:
        yield
    finally:
        data.drain(_LAST_FLUSH_S)
        talk.drain(_LAST_FLUSH_S)
        sys.stdout, sys.stderr = before
