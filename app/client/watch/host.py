"""What the machine tells of a local server: its process tree, and the GPUs with who uses them.

Blocking; to be called from a thread. Libraries are imported on first use. A value that cannot be
read is None. A server on another machine has no process here, and that is said. The dashboard's
one door to `engine.machine`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from engine.machine.addresses import is_loopback
from engine.machine.gpus import GpuHolder as GpuHolder
from engine.machine.gpus import GpuMeter
from engine.machine.gpus import GpuUse as GpuUse
from engine.machine.nvml import import_nvml
from engine.machine.ports import listening_pid
from engine.machine.processes import role_of

if TYPE_CHECKING:
    import psutil

_REMOTE = "the server runs on another machine"
_NOT_FOUND = "no process of this user listens on the server's port"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """One process of the server's tree; `cpu_share` is 1 for one busy core, None at first."""

    pid: int
    name: str
    cpu_share: float | None
    rss_bytes: int
    num_threads: int
    role: str = ""  # in the server, "" where its command line does not tell


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSample:
    """All of it at `time_s` (monotonic). A reason is "" where there is something to show."""

    time_s: float
    processes: tuple[ProcessUse, ...] = ()
    process_reason: str = ""
    gpus: tuple[GpuUse, ...] = ()
    gpu_reason: str = ""
    cpu_share: float | None = None  # of all cores
    num_cores: int | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None


class CoreLoad:
    """The share of all cores that was busy since the question before; None at first."""

    def __init__(self) -> None:
        self._before: tuple[float, float] | None = None

    def read(self) -> float | None:
        """Share of all cores busy since the last call, None at the first; costs one small file."""
        import psutil

        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        before, self._before = self._before, (idle, total)
        if before is None or total <= before[1]:
            return None
        return min(1.0, max(0.0, 1.0 - (idle - before[0]) / (total - before[1])))


class HostSampler:
    """Finds the server's process by its port once, then reads the tree below it."""

    def __init__(self, url: str, nvml: Callable[[], Any] = import_nvml) -> None:
        self._url = url
        self._gpus = GpuMeter(nvml)
        self._has_read = False
        self._root: psutil.Process | None = None
        self._known: dict[int, psutil.Process] = {}

    def read(self) -> HostSample:
        """One sample; never raises for what this machine does not let us see."""
        import psutil

        if not is_local(self._url):
            return HostSample(time_s=time.monotonic(), process_reason=_REMOTE, gpu_reason=_REMOTE)
        processes = self._processes()
        gpus, gpu_reason = self._gpus.read({process.pid for process in processes})
        memory, cpu_share = psutil.virtual_memory(), psutil.cpu_percent() / 100
        had_read, self._has_read = self._has_read, True
        return HostSample(
            time_s=time.monotonic(),
            processes=processes,
            process_reason="" if processes else _NOT_FOUND,
            gpus=gpus,
            gpu_reason=gpu_reason,
            cpu_share=cpu_share if had_read else None,  # the first is since an unknown moment
            num_cores=psutil.cpu_count(),
            memory_used_bytes=memory.total - memory.available,
            memory_total_bytes=memory.total,
        )

    def _processes(self) -> tuple[ProcessUse, ...]:
        import psutil

        if self._root is None or not self._root.is_running():
            pid = listening_pid(urlsplit(self._url).port or 80)
            self._root = _process(pid)
            self._known = {}
        if self._root is None:
            return ()
        try:
            tree = [self._root, *self._root.children(recursive=True)]
        except psutil.Error:
            return ()
        # psutil measures CPU time between two calls on one object, so the objects are kept.
        is_new = {process.pid for process in tree} - self._known.keys()
        self._known = {process.pid: self._known.get(process.pid, process) for process in tree}
        found = (_use(process, is_new) for process in self._known.values())
        return tuple(use for use in found if use is not None)


def is_local(url: str) -> bool:
    """Whether the address is this machine's loopback."""
    return is_loopback(urlsplit(url).hostname or "")


def _process(pid: int | None) -> psutil.Process | None:
    import psutil

    try:
        return None if pid is None else psutil.Process(pid)
    except psutil.Error:
        return None


def _use(process: psutil.Process, is_new: set[int]) -> ProcessUse | None:
    import psutil

    try:
        with process.oneshot():
            cpu = process.cpu_percent() / 100
            return ProcessUse(
                pid=process.pid,
                name=process.name(),
                role=role_of(process.cmdline()),
                cpu_share=None if process.pid in is_new else cpu,
                rss_bytes=process.memory_info().rss,
                num_threads=process.num_threads(),
            )
    except psutil.Error:
        return None
