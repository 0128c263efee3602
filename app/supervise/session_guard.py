"""Runs beside a server: ends all of its processes when Stoker is gone, however Stoker ended.

Called as `python -I -S session_guard.py MARK`. Its standard input is a pipe that closes with the
supervisor and brings, NUL after each, the server's pid and the names of shared memory and sockets
to remove at last. A process is the server's by its session, by MARK in its environment, or by its
parent: the server adopts its orphans (child_shim) and stands still until they are gone. SIGTERM
first: whoever shuts down cleans up. Of ours it imports its neighbour `shared_files` only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from typing import Any

_POLL_S = 0.05
_GRACE_S = 5.0
_KILL_S = 3.0
_NO_SERVER = b"-1"  # not 0: that is the session of what a container was given from outside


def main() -> None:
    """Wait for the end of the pipe, then end everyone of the server."""
    mark = sys.argv[1].encode()
    server, *names = sys.stdin.buffer.read().split(b"\0")[:-1] or [_NO_SERVER]
    end_server(int(server), mark, [os.fsdecode(name) for name in names])


def end_server(session: int, mark: bytes, names: list[str]) -> None:
    """End all processes of a server; then its shared memory and sockets go, `names` among them."""
    files = _shared_files()
    files.add(names)
    files.note(_members(session, mark))
    _signal(_members(session, mark) & {session}, signal.SIGSTOP)
    for number, patience_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _KILL_S)):
        _signal(_members(session, mark) - {session}, number)
        deadline = time.monotonic() + patience_s
        while _members(session, mark) - {session} and time.monotonic() < deadline:
            time.sleep(_POLL_S)
    _signal(_members(session, mark), signal.SIGKILL)
    deadline = time.monotonic() + _KILL_S
    while _members(session, mark) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    files.remove()


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _shared_files() -> Any:
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    from shared_files import SharedFiles  # type: ignore[import-not-found]

    return SharedFiles()


def _members(session: int, mark: bytes) -> set[int]:
    parents, found = {}, set()
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        with contextlib.suppress(OSError, ValueError):
            pid = int(name)
            state, parents[pid] = _state_and_parent(name)
            if state == b"Z":
                del parents[pid]
            elif os.getsid(pid) == session or _has_mark(name, mark):
                found.add(pid)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


def _state_and_parent(pid: str) -> tuple[bytes, int]:
    """They follow the program's name, which stands in brackets and may hold any character."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return fields[0], int(fields[1])


def _has_mark(pid: str, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:  # another user's
        return False


if __name__ == "__main__":
    main()
