"""Whether the terminal that this process draws on is still there."""

from __future__ import annotations

import errno
import os
import termios
import threading
import time
from collections.abc import Callable

_SCREEN = 2  # what draws, draws on standard error
_WATCH_S = 1.0


def is_terminal_gone() -> bool:
    """True when its window is closed; False for a file or a pipe, which never was one."""
    try:
        termios.tcgetattr(_SCREEN)
    except termios.error as error:
        return bool(error.args) and error.args[0] == errno.EIO
    return False


def watch_terminal(on_gone: Callable[[], None]) -> None:
    """Call `on_gone`, in a thread of its own, once the terminal is gone; a file is never gone.

    The kernel tells a closed terminal to the leader of its session alone. A leader that waits for
    its children (make does) passes no SIGHUP on.
    """

    def watch() -> None:
        while not is_terminal_gone():
            time.sleep(_WATCH_S)
        on_gone()

    if os.isatty(_SCREEN):
        threading.Thread(target=watch, name="terminal", daemon=True).start()
