"""All processes of one server: the child, its descendants, whatever shares its session or mark.

The mark is a variable in the environment of the child, which even those inherit that leave its
session. A process is known by pid and start time, so that a reused pid is never signalled. Zombies
count as gone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
from collections.abc import Iterator

import psutil

from engine.machine.processes import SERVER_MARK, is_alive, process_identity

_SHIM = ("/child_shim.py", "/second_guard.py")


class ProcessTree:
    """Remembers every process seen below `root_pid`, also after its parent has gone."""

    def __init__(self, root_pid: int, mark: str | None = None) -> None:
        self._root_pid = root_pid
        self._mark = mark.encode() if mark is not None else _mark_of(root_pid)
        self._seen: dict[int, psutil.Process] = {}
        self._nameless: set[int] = set()

    def refresh(self) -> None:
        """Look for processes not seen before; cheap enough to call once a second."""
        found = {process.pid: process for process in (*self._descendants(), *self._members())}
        for process in found.values():
            if not self._is_known(process) and not self._is_of_shim(process):
                self._seen[process.pid] = process

    def alive(self) -> tuple[psutil.Process, ...]:
        """Processes seen so far that still run."""
        return tuple(process for process in self._seen.values() if is_alive(process))

    def pids(self) -> frozenset[int]:
        """Of all processes seen, also of those that have ended."""
        return frozenset(self._seen)

    def num_seen(self) -> int:
        """How many processes there have been."""
        return len(self._seen)

    def signal_all(self, number: signal.Signals) -> None:
        """Signal every process that still runs, children before their parents."""
        self.refresh()
        for process in reversed(self.alive()):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                process.send_signal(number)

    def _is_known(self, process: psutil.Process) -> bool:
        return self._seen.get(process.pid) == process  # compares pid and start time

    def _is_of_shim(self, process: psutil.Process) -> bool:
        """A fork of the shim, for a moment, on its way to be the second guard.

        While it becomes another program it has no command line at all, so a process without one is
        believed at the second look.
        """
        if process.pid == self._root_pid or process.pid in self._nameless:
            return False
        try:
            words = process.cmdline()
        except psutil.AccessDenied:
            return False
        except psutil.Error:
            return True  # gone meanwhile
        if not words:
            self._nameless.add(process.pid)
        return not words or any(word.endswith(_SHIM) for word in words[:5])

    def _descendants(self) -> Iterator[psutil.Process]:
        for known in (self._root_pid, *self._seen):
            with contextlib.suppress(psutil.Error):
                process = self._seen.get(known) or psutil.Process(known)
                yield process
                yield from process.children(recursive=True)

    def _members(self) -> Iterator[psutil.Process]:
        """Orphans: their parent is gone, but session and environment stay on them."""
        for pid in psutil.pids():
            with contextlib.suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
                if os.getsid(pid) == self._root_pid or self._has_mark(pid):
                    yield psutil.Process(pid)

    def _has_mark(self, pid: int) -> bool:
        return self._mark is not None and self._mark in _environment(pid)


def new_mark() -> str:
    """For the environment of one server's first process; names this process as its supervisor."""
    supervisor = f"{os.getpid()}@{process_identity(os.getpid())}"
    return f"{SERVER_MARK}={secrets.token_hex(8)}@{supervisor}"


def _mark_of(pid: int) -> bytes | None:
    prefix = f"{SERVER_MARK}=".encode()
    return next((entry for entry in _environment(pid) if entry.startswith(prefix)), None)


def _environment(pid: int) -> list[bytes]:
    """As it was when the program began; empty for other users' processes and other systems."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []
