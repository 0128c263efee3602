"""Whether the terminal that this process draws on is still there."""

from __future__ import annotations

import errno
import termios

_SCREEN = 2  # what draws, draws on standard error


def is_terminal_gone() -> bool:
    """True when its window is closed; False for a file or a pipe, which never was one."""
    try:
        termios.tcgetattr(_SCREEN)
    except termios.error as error:
        return bool(error.args) and error.args[0] == errno.EIO
    return False
