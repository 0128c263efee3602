"""Runs beside a server whose children outlive it: ends its session when Stoker is gone.

Called as `python -I -S session_guard.py SESSION`; its standard input is a pipe that closes when the
supervisor ends, however it ends. SIGTERM first: whoever shuts down removes its shared memory, and
Python's resource tracker, which ignores that signal, removes what others leave. No import of ours.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

_POLL_S = 0.05
_GRACE_S = 5.0
_KILL_S = 3.0


def main() -> None:
    """Wait for the end of the pipe, then end everyone of the session."""
    session = int(sys.argv[1])
    sys.stdin.buffer.read()
    for number, patience_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _KILL_S)):
        _signal_all(session, number)
        deadline = time.monotonic() + patience_s
        while _members(session) and time.monotonic() < deadline:
            time.sleep(_POLL_S)


def _signal_all(session: int, number: signal.Signals) -> None:
    for pid in _members(session):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _members(session: int) -> list[int]:
    members = []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        with contextlib.suppress(ProcessLookupError, PermissionError, ValueError):
            if os.getsid(int(name)) == session and not _is_zombie(name):
                members.append(int(name))
    return members


def _is_zombie(pid: str) -> bool:
    """The state follows the program's name, which stands in brackets and may hold any character."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"Z"
    except OSError:
        return True


if __name__ == "__main__":
    main()
