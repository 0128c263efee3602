from __future__ import annotations

import os
import pty
import signal
import sys

CODE = """
import os, signal, time
from app.client.terminal import watch_terminal
signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nobody passes it on
watch_terminal(lambda: os._exit(7))
os.write(1, b"watching")  # in one piece: whoever has read it closes the screen
time.sleep(600)
"""


def test_a_terminal_that_is_closed_is_seen_without_a_signal() -> None:
    pid, screen = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", CODE])
    try:
        said = b""
        while b"watching" not in said:
            said += os.read(screen, 1000)
    finally:
        os.close(screen)
    _, status = os.waitpid(pid, 0)

    assert os.waitstatus_to_exitcode(status) == 7
    assert signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
