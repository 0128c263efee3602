"""A pseudo-terminal with one of our commands in it, for what only a real terminal shows."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable

VARIABLES = ("STOKER_URL", "STOKER_API_KEY", "VLLM_API_KEY", "STOKER_API_KEY_FILE")

# The child takes the pseudo-terminal as its own first, so that Ctrl-C typed there reaches it.
PROGRAM = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from {module} import main
sys.exit(main())
"""


class Terminal:
    """A command of ours with a screen, on a pseudo-terminal."""

    def __init__(
        self, *words: str, columns: int = 80, rows: int = 24, module: str = "app.cli"
    ) -> None:
        self.fd, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.modes_before = termios.tcgetattr(child)[3]
        environment = {k: v for k, v in os.environ.items() if k not in VARIABLES}
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM.format(module=module), *words],
            stdin=child,
            stdout=child,
            stderr=child,
            env={**environment, "TERM": "xterm", "COLORTERM": "truecolor"},
            start_new_session=True,
        )
        os.close(child)
        self.seen = ""  # behind what was waited for
        self.printed = ""  # all of it, as far as it was read

    def wait_for(self, text: str) -> None:
        """Read until `text` appears after what was waited for before."""
        while text not in self.seen:
            ready, _, _ = select.select([self.fd], [], [], 60)
            assert ready, f"{text!r} did not come; there was {self.seen!r}"
            piece = os.read(self.fd, 4096).decode(errors="replace")
            self.seen += piece
            self.printed += piece
        self.seen = self.seen.partition(text)[2]

    def read_until(self, condition: Callable[[str], bool], timeout_s: float = 60.0) -> str:
        """All that the screen writes until `condition`, which is asked of it after each piece."""
        deadline, text = time.monotonic() + timeout_s, ""
        while not condition(text):
            assert time.monotonic() < deadline, f"it did not come; there was {text!r}"
            if select.select([self.fd], [], [], 0.2)[0]:
                text += os.read(self.fd, 65536).decode(errors="replace")
        return text

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def wait_for_end(self) -> int:
        """The exit code; what is still printed is read."""
        with contextlib.suppress(OSError):  # the last process has closed it
            while chunk := os.read(self.fd, 4096):
                self.seen += chunk.decode(errors="replace")
        return self.process.wait(timeout=60)

    def close(self) -> int:
        code = self.process.wait(timeout=60)
        os.close(self.fd)
        return code
