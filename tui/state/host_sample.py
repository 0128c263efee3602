"""What the machine tells of a local server: its process tree, and the GPUs with who uses them.

Blocking; to be called from a thread. Libraries are imported on first use. A value that cannot be
read is None. A server on another machine has no process here, and that is said.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import psutil

_REMOTE = "the server runs on another machine"
_NOT_FOUND = "no process of this user listens on the server's port"
# Bits of NVML's clock event reasons that slow a GPU down, worst first.
_THROTTLE_BITS = (
    (0x08, "hardware slowdown"),
    (0x40, "hardware thermal slowdown"),
    (0x80, "power brake"),
    (0x20, "software thermal slowdown"),
    (0x04, "power cap"),
)


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
class GpuUse:
    """One GPU. `server_bytes` is what the server's processes hold of its memory."""

    index: int
    name: str
    utilisation: float | None  # 0..1
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_w: float | None
    power_limit_w: float | None
    temperature_c: int | None
    throttle: str | None  # "" means that nothing slows it down
    server_bytes: int | None
    processes: tuple[tuple[int, int | None], ...]  # (pid, bytes)


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
        """Costs one small file."""
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

    def __init__(self, url: str, nvml: Callable[[], Any] | None = None) -> None:
        self._url = url
        self._import_nvml = nvml or _import_nvml
        self._nvml: Any = None
        self._nvml_reason = ""
        self._has_read = False
        self._root: psutil.Process | None = None
        self._known: dict[int, psutil.Process] = {}

    def read(self) -> HostSample:
        """One sample; never raises for what this machine does not let us see."""
        import psutil

        if not is_local(self._url):
            return HostSample(time_s=time.monotonic(), process_reason=_REMOTE, gpu_reason=_REMOTE)
        processes = self._processes()
        gpus, gpu_reason = self._gpus({process.pid for process in processes})
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
            self._root = _listener(urlsplit(self._url).port or 80)
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

    def _gpus(self, pids: set[int]) -> tuple[tuple[GpuUse, ...], str]:
        if self._nvml is None and not self._nvml_reason:
            self._nvml_reason = self._start_nvml()
        nvml = self._nvml
        if nvml is None:
            return (), self._nvml_reason
        try:
            count = nvml.nvmlDeviceGetCount()
            return tuple(_gpu(nvml, index, pids) for index in range(count)), ""
        except nvml.NVMLError as error:
            return (), f"NVML refused ({error})"

    def _start_nvml(self) -> str:
        """Once, for it takes long: why there is none, "" if there is."""
        try:
            nvml = self._import_nvml()
        except ImportError:
            return "no NVML: the package nvidia-ml-py is not installed"
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            return f"no NVIDIA GPU is usable here ({error})"
        self._nvml = nvml
        return ""


def is_local(url: str) -> bool:
    """Whether the address is this machine's loopback."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _import_nvml() -> Any:
    import pynvml

    return pynvml


def _listener(port: int) -> psutil.Process | None:
    import psutil

    try:
        for connection in psutil.net_connections("tcp"):
            is_server = connection.status == psutil.CONN_LISTEN and connection.pid
            if is_server and connection.laddr and connection.laddr.port == port:
                return psutil.Process(connection.pid)
    except psutil.Error:
        return None  # some systems tell it to root only
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


_ROLES = {"serve": "APIServer", "core": "EngineCore"}


def role_of(words: Sequence[str]) -> str:
    """What a process of a server does, by its command line; "" where that does not tell.

    vLLM and SGLang write it into the title, our engine is started with it as its first argument.
    """
    title = words[0] if words else ""
    if title.startswith(("VLLM::", "sglang::")):
        return title.partition("::")[2].split()[0]
    for word, following in pairwise(words):
        if word.endswith("engine/__main__.py"):
            return _ROLES.get(following, "")
        if word == "-m" and following.startswith(("vllm.", "sglang.")):
            return "APIServer"
    if "vllm" in [word.rsplit("/", 1)[-1] for word in words[:2]] and "serve" in words[:3]:
        return "APIServer"
    return "resource tracker" if "resource_tracker" in " ".join(words[:6]) else ""


def _gpu(nvml: Any, index: int, pids: set[int]) -> GpuUse:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def ask(question: str, *args: object) -> Any:
        try:
            return getattr(nvml, question)(handle, *args)
        except (nvml.NVMLError, AttributeError):
            return None

    memory, rates = ask("nvmlDeviceGetMemoryInfo"), ask("nvmlDeviceGetUtilizationRates")
    power, limit = ask("nvmlDeviceGetPowerUsage"), ask("nvmlDeviceGetEnforcedPowerLimit")
    running = ask("nvmlDeviceGetComputeRunningProcesses")
    name = ask("nvmlDeviceGetName")
    return GpuUse(
        index=index,
        name=name.decode() if isinstance(name, bytes) else str(name or "GPU"),
        utilisation=None if rates is None else rates.gpu / 100,
        memory_used_bytes=None if memory is None else int(memory.used),
        memory_total_bytes=None if memory is None else int(memory.total),
        power_w=None if power is None else power / 1000,
        power_limit_w=None if limit is None else limit / 1000,
        temperature_c=ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        throttle=_throttle(ask("nvmlDeviceGetCurrentClocksThrottleReasons")),
        server_bytes=_held(running, pids),
        processes=tuple((item.pid, item.usedGpuMemory) for item in running or ()),
    )


def _throttle(reasons: int | None) -> str | None:
    if reasons is None:
        return None
    return ", ".join(word for bit, word in _THROTTLE_BITS if reasons & bit)


def _held(running: Sequence[Any] | None, pids: set[int]) -> int | None:
    """None where the driver does not tell the bytes, as in a container."""
    if running is None:
        return None
    held = [item.usedGpuMemory for item in running if item.pid in pids]
    if not held or any(value is None for value in held):
        return None
    return int(sum(held))
