"""Starts of engines on one device measure its memory one at a time, and know of each other.

Each has a file of its own in the device's folder, which only it writes; a lock says whose turn it
is. What a dead process left there counts for nothing, and its lock is free.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.machine.control_groups import ROOT, group_folders
from engine.machine.locks import file_lock
from engine.machine.ownership import make_private, own_distrust
from engine.machine.private_files import replace_file
from engine.machine.processes import (
    SERVER_MARK,
    engine_kind,
    is_same_process,
    process_clock,
    process_identity,
    supervisor_in,
)

WAITING, MEASURING, RUNNING = "waiting", "measuring", "running"
_LOCK, _SUFFIX = "turn.lock", ".json"
_STANDSTILL_S = 60.0  # a disk that answers slowly still costs a tick now and then


@dataclass(frozen=True, slots=True)
class DeviceStart:
    """One engine. `members` are the pids whose memory is its own, EngineCore's first, then those
    of its worker processes.

    Replicas of one server have the same `parent`.
    `held_bytes` is what a running one may come to hold, its KV cache in full. `group` is the folder
    of its memory control group.
    """

    pid: int
    identity: str
    parent: int
    state: str
    members: tuple[int, ...] = ()
    held_bytes: int = 0
    group: str = ""


class DeviceTurn:
    """This process's start, while it may measure and allocate."""

    def __init__(self, write: Callable[[DeviceStart], None], start: DeviceStart) -> None:
        self._write = write
        self._start = start
        self.has_reserved = False

    def reserve(self, held_bytes: int) -> None:
        """What the start will hold is known: the next one is to see that, touched or not."""
        self._start = dataclasses.replace(self._start, state=RUNNING, held_bytes=held_bytes)
        self._write(self._start)
        self.has_reserved = True


class DeviceStarts:
    """Those in `folder`, which belongs to one device; it need not be there.

    One whose turn it is and that uses no CPU time for `standstill_s` is not waited for any more.
    """

    def __init__(self, folder: Path, standstill_s: float = _STANDSTILL_S) -> None:
        self.folder = folder
        self._standstill_s = standstill_s

    @contextlib.contextmanager
    def turn(self, on_wait: Callable[[int], None]) -> Iterator[DeviceTurn]:
        """Wait until no other start measures; `on_wait` gets the pid of each that does.

        OSError where the folder cannot be used, before anything was done; TimeoutError where the
        one whose turn it is stands still.
        """
        self._prepare()
        start = own_start()
        self._write(start)
        told: list[int] = []
        watch = _HolderWatch()

        def look() -> None:
            holder = self._holder()
            if holder is not None and holder not in told[-1:]:
                told.append(holder)
                on_wait(holder)
            if watch.still_s(holder) > self._standstill_s:
                raise TimeoutError(
                    f"process {holder}, whose turn it is, has done nothing for "
                    f"{self._standstill_s:g} s"
                )

        turn: DeviceTurn | None = None
        try:
            with file_lock(self.folder / _LOCK, look, look):
                self._remove_dead()
                start = dataclasses.replace(start, state=MEASURING)
                self._write(start)
                turn = DeviceTurn(self._write, start)
                yield turn
        finally:
            if turn is None or not turn.has_reserved:
                self.leave()

    def announce(self) -> None:
        """This process, or one that it starts, will want a turn.

        Until then, what they hold is no loss to who measures.
        """
        with contextlib.suppress(OSError):
            self._prepare()
            self._write(own_start())

    def hold(self, held_bytes: int) -> None:
        """This process, which runs, may come to hold so much from now on; it waits for no turn."""
        self._write(dataclasses.replace(own_start(), state=RUNNING, held_bytes=held_bytes))

    def leave(self) -> None:
        """This process holds nothing any more."""
        self._remove(os.getpid())

    def leave_with_server(self) -> None:
        """Nor does the server that announced it."""
        for pid in own_start().members:
            self._remove(pid)

    def _remove(self, pid: int) -> None:
        with contextlib.suppress(OSError):
            self._path(pid).unlink(missing_ok=True)

    def others(self) -> tuple[DeviceStart, ...]:
        """Those of other living processes."""
        found = (_read(path) for path in sorted(self.folder.glob(f"*{_SUFFIX}")))
        return tuple(
            one for one in found if one is not None and one.pid != os.getpid() and _is_living(one)
        )

    def _prepare(self) -> None:
        make_private(self.folder)
        if (fault := own_distrust(self.folder)) is not None:
            raise PermissionError(str(fault))

    def _holder(self) -> int | None:
        return next((one.pid for one in self.others() if one.state == MEASURING), None)

    def _remove_dead(self) -> None:
        for path in self.folder.glob(f"*{_SUFFIX}"):
            found = _read(path)
            if found is None or not _is_living(found):
                path.unlink(missing_ok=True)

    def _write(self, start: DeviceStart) -> None:
        text = json.dumps(dataclasses.asdict(start))
        replace_file(self._path(start.pid), text.encode())

    def _path(self, pid: int) -> Path:
        return self.folder / f"{pid}{_SUFFIX}"


class _HolderWatch:
    """For how long the one whose turn it is, and its worker processes, have used no CPU time."""

    def __init__(self) -> None:
        self._seen: tuple[int | None, int | None] = None, None
        self._since = time.monotonic()

    def still_s(self, pid: int | None) -> float:
        """Of process `pid`, which may be another one each time; 0 where nobody can tell."""
        ticks = None if pid is None else _family_ticks(pid)
        if ticks is None or self._seen != (pid, ticks):
            self._seen, self._since = (pid, ticks), time.monotonic()
        return time.monotonic() - self._since


def _family_ticks(pid: int) -> int | None:
    """CPU time of a process and its children, in ticks; None where it is gone. Linux."""
    clock = process_clock(pid)
    if clock is None:
        return None
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        clocks = (process_clock(int(child)) for child in children)
        return clock.ticks + sum(one.ticks for one in clocks if one is not None)
    return clock.ticks


def own_start(root: Path = ROOT) -> DeviceStart:
    """This process as a start that waits, with the server and the supervisor that it belongs to."""
    pid = os.getpid()
    group = next(iter(group_folders("memory", root)), None)
    members = (pid, *_workers(), *_api_server(), *_supervisor())
    identity, parent = process_identity(pid), os.getppid()
    return DeviceStart(pid, identity, parent, WAITING, members, group=str(group or ""))


def _api_server() -> Iterator[int]:
    """The parent, if it is Stoker's: of an offline `LLM` it is the user's program."""
    import psutil

    with contextlib.suppress(psutil.Error):
        parent = psutil.Process().parent()
        if parent is not None and engine_kind(parent.cmdline()) == "stoker":
            yield parent.pid


def _workers() -> Iterator[int]:
    import psutil

    children: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        children = psutil.Process().children()
    for child in children:
        with contextlib.suppress(psutil.Error):
            # One that has just begun is not yet the program that it becomes.
            if any(word.endswith("engine/__main__.py") for word in child.cmdline()):
                yield child.pid


def _supervisor() -> Iterator[int]:
    supervisor = supervisor_in(os.environ.get(SERVER_MARK, ""))
    if supervisor is not None and is_same_process(*supervisor):
        yield supervisor[0]


def _is_living(start: DeviceStart) -> bool:
    return is_same_process(start.pid, start.identity)


def _read(path: Path) -> DeviceStart | None:
    """None for a file that is gone or damaged."""
    try:
        fields = json.loads(path.read_bytes())
        fields["members"] = tuple(map(int, fields["members"]))
        return DeviceStart(**fields)
    except (OSError, ValueError, TypeError, KeyError):
        return None
