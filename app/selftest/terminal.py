"""A server started in a terminal of its own, for the trials in which that terminal goes away."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import struct
import termios
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from app.supervise.background import (
    BackgroundStart,
    exit_code_of_child,
    leave_terminal,
    open_output,
)

_SIZE = struct.pack("HHHH", 30, 100, 0, 0)
_CHUNK_BYTES = 1 << 16


def start_in_terminal(run: Callable[[], int], output: Path) -> BackgroundStart:
    """Fork a terminal in which `run` runs; its pid. It shows nothing, and ends with `run`'s code.

    Killing it is what closing a terminal's window is.
    """
    pid = os.fork()
    if pid == 0:
        _be_terminal(run, output)
    return BackgroundStart(pid, output)


def _be_terminal(run: Callable[[], int], output: Path) -> NoReturn:
    code = 1
    try:
        leave_terminal(open_output(output))
        front, screen = pty.fork()
        if front == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, _SIZE)
            os.environ["TERM"] = "xterm-256color"
            signal.signal(signal.SIGINT, signal.default_int_handler)
            code = run()
        else:
            with contextlib.suppress(OSError):  # EIO: nobody has it open any more
                while os.read(screen, _CHUNK_BYTES):
                    pass
            code = exit_code_of_child(os.waitpid(front, 0)[1])
    finally:
        os._exit(code)  # never back into the parent's stack
