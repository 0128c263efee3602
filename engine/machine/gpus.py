"""The GPUs as NVML shows them: cards and links, how busy they are, who holds their memory.

No CUDA, no torch. What a driver or a card cannot tell is None. The module that talks to the driver
can be given, so that tests script it. A process is named by the kernel's short name for it, never
by its arguments: those may hold a key.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.machine.nvml import ask_nvml, import_nvml, optional, started

# What slows a clock down, worst first.
_THROTTLED_BY = (
    (0x08, "hardware slowdown"),
    (0x40, "hardware thermal slowdown"),
    (0x80, "power brake"),
    (0x20, "software thermal slowdown"),
    (0x04, "power cap"),
)
_CHOSEN = 0x04  # no fault: somebody set the limit
_PATHS = (
    *((0, "same board"), (10, "one PCIe switch"), (20, "several PCIe switches")),
    *((30, "one host bridge"), (40, "one NUMA node"), (50, "the link between sockets")),
)
_P2P = (
    *((0, "ok"), (1, "the chipset does not support it"), (2, "the GPU does not support it")),
    *((3, "the topology does not support it"), (4, "switched off"), (5, "not supported")),
)
_NUM_NVLINKS = 18


@dataclass(frozen=True, slots=True)
class GpuHolder:
    """A process that has memory on a GPU; `bytes` is None where the driver does not tell."""

    pid: int
    bytes: int | None = None
    name: str | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU; memory in bytes. None: the driver does not tell."""

    name: str
    memory_bytes: int
    memory_used_bytes: int
    compute_capability: tuple[int, int]
    mig: bool | None = None
    mig_instances: int = 0
    persistence: bool | None = None
    ecc: bool | None = None
    ecc_errors: int | None = None  # uncorrected ones since the last start
    throttled_by: tuple[str, ...] = ()  # faults alone; idle, power cap, chosen clocks are none
    nvlinks: int = 0
    holders: tuple[GpuHolder, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLink:
    """How two GPUs reach each other: the nearest common part, and whether P2P reads work."""

    first: int
    second: int
    path: str | None = None
    p2p: str | None = None  # ok, or why not


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """What NVML says, or why it says nothing (`error` is one word, `reason` the sentence)."""

    gpus: tuple[Gpu, ...] = ()
    links: tuple[GpuLink, ...] = ()
    driver: str | None = None
    cuda: str | None = None  # newest CUDA that the driver serves
    error: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """One GPU at work. `server_bytes` is what the processes asked about hold of its memory."""

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
    processes: tuple[GpuHolder, ...]  # those that compute


class GpuMeter:
    """Keeps NVML open, since a start takes long, for who asks every second."""

    def __init__(self, import_nvml: Callable[[], Any] = import_nvml) -> None:
        self._import_nvml = import_nvml
        self._nvml: Any = None
        self._reason = ""

    def read(self, pids: Collection[int]) -> tuple[tuple[GpuUse, ...], str]:
        """The GPUs, of which `pids` may hold memory; or why there are none, in words."""
        if self._nvml is None and not self._reason:
            self._reason = self._start()
        nvml = self._nvml
        if nvml is None:
            return (), self._reason
        try:
            count = nvml.nvmlDeviceGetCount()
            return tuple(_use(nvml, index, pids) for index in range(count)), ""
        except nvml.NVMLError as error:
            return (), f"NVML refused ({error})"

    def _start(self) -> str:
        nvml = self._import_nvml()
        if nvml is None:
            return "no NVML: the package nvidia-ml-py is not installed"
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            return f"no NVIDIA GPU is usable here ({error})"
        self._nvml = nvml
        return ""


# (pid) -> (short name, user), None for what cannot be looked up
LookUp = Callable[[int], tuple[str | None, str | None]]


def read_gpus(nvml: Any = None, look_up: LookUp | None = None) -> GpuReading:
    """Ask NVML once. `nvml` is the module pynvml, or one that behaves like it."""
    nvml = nvml or import_nvml()
    if nvml is None:
        return GpuReading(
            error="package-missing", reason="the Python package nvidia-ml-py is missing"
        )
    what = "NVML does not start"
    try:
        with started(nvml):
            what = "NVML fails"
            return _read(nvml, look_up or _look_up)
    except nvml.NVMLError as error:
        return _no_reading(nvml, error, what)


def _no_reading(nvml: Any, error: Exception, what: str) -> GpuReading:
    number = getattr(error, "value", None)
    kinds = {
        nvml.NVML_ERROR_LIBRARY_NOT_FOUND: ("library-missing", "NVML not found"),
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: ("driver-mismatch", None),
        nvml.NVML_ERROR_DRIVER_NOT_LOADED: ("driver-not-loaded", None),
        nvml.NVML_ERROR_NO_PERMISSION: ("no-permission", None),
    }
    kind, reason = kinds.get(number, ("failed", None))
    return GpuReading(error=kind, reason=reason or f"{what}: {error}")


def _read(nvml: Any, look_up: LookUp) -> GpuReading:
    handles = _handles(nvml)
    cuda = optional(nvml, lambda: int(nvml.nvmlSystemGetCudaDriverVersion()))
    return GpuReading(
        gpus=tuple(_gpu(nvml, handle, look_up) for handle in handles),
        links=tuple(
            _link(nvml, handles, first, second)
            for first in range(len(handles))
            for second in range(first + 1, len(handles))
        ),
        driver=optional(nvml, lambda: _text(nvml.nvmlSystemGetDriverVersion())),
        cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
    )


def _handles(nvml: Any) -> list[Any]:
    return [nvml.nvmlDeviceGetHandleByIndex(at) for at in range(nvml.nvmlDeviceGetCount())]


def _gpu(nvml: Any, handle: Any, look_up: LookUp) -> Gpu:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    mig = optional(nvml, lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0]))
    return Gpu(
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=int(memory.total),
        memory_used_bytes=int(memory.used),
        compute_capability=(int(major), int(minor)),
        mig=mig,
        mig_instances=_mig_instances(nvml, handle) if mig else 0,
        persistence=optional(nvml, lambda: bool(nvml.nvmlDeviceGetPersistenceMode(handle))),
        ecc=optional(nvml, lambda: bool(nvml.nvmlDeviceGetEccMode(handle)[0])),
        ecc_errors=optional(nvml, lambda: _ecc_errors(nvml, handle)),
        throttled_by=tuple(
            word for bit, word in _throttled_by(nvml, handle) or () if bit != _CHOSEN
        ),
        nvlinks=_nvlinks(nvml, handle),
        holders=_holders(nvml, handle, look_up),
    )


def _mig_instances(nvml: Any, handle: Any) -> int:
    most = optional(nvml, lambda: int(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))) or 0
    found = (
        optional(nvml, lambda at=at: nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, at))
        for at in range(most)
    )
    return sum(one is not None for one in found)


def _ecc_errors(nvml: Any, handle: Any) -> int:
    uncorrected, volatile = (
        nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        nvml.NVML_VOLATILE_ECC,
    )
    return int(nvml.nvmlDeviceGetTotalEccErrors(handle, uncorrected, volatile))


def _throttled_by(nvml: Any, handle: Any) -> list[tuple[int, str]] | None:
    bits = optional(nvml, lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)))
    return None if bits is None else [one for one in _THROTTLED_BY if bits & one[0]]


def _nvlinks(nvml: Any, handle: Any) -> int:
    active = 0
    for link in range(_NUM_NVLINKS):
        state = optional(nvml, lambda link=link: int(nvml.nvmlDeviceGetNvLinkState(handle, link)))
        if state is None:  # this card has no such link, nor any after it
            break
        active += state
    return active


def _holders(nvml: Any, handle: Any, look_up: LookUp) -> tuple[GpuHolder, ...]:
    held = held_bytes(nvml, handle).items()
    return _largest_first(GpuHolder(pid, size, *look_up(pid)) for pid, size in held)


def _largest_first(holders: Iterable[GpuHolder]) -> tuple[GpuHolder, ...]:
    return tuple(sorted(holders, key=lambda one: (-(one.bytes or 0), one.pid)))


def held_bytes(nvml: Any, handle: Any) -> dict[int, int | None]:
    """pid -> bytes; a process that both computes and draws is listed by NVML twice."""
    return {
        int(process.pid): process.usedGpuMemory
        for read in (
            nvml.nvmlDeviceGetGraphicsRunningProcesses,
            nvml.nvmlDeviceGetComputeRunningProcesses,
        )
        for process in optional(nvml, lambda read=read: read(handle)) or ()
    }


def read_holders(nvml: Any = None) -> tuple[dict[int, int | None], ...]:
    """For each GPU pid -> bytes; nothing where NVML gives no answer."""

    def ask(nvml: Any) -> tuple[dict[int, int | None], ...]:
        return tuple(held_bytes(nvml, handle) for handle in _handles(nvml))

    return ask_nvml(ask, (), nvml)


def read_other_processes() -> tuple[GpuHolder, ...]:
    """The other processes on this process's first GPU, largest first; empty when NVML is no help.

    To be called with a CUDA context open: then NVML counts this process too, which shows whether
    its pids are the ones that this process knows or those of a host outside the container.
    """
    return others(ask_nvml(_held_on_first, {}), os.getpid(), Path("/proc"))


def _held_on_first(nvml: Any) -> dict[int, int | None]:
    handle = _first_cuda_device(nvml, os.environ)
    return {} if handle is None else held_bytes(nvml, handle)


def others(held: Mapping[int, int | None], own_pid: int, proc: Path) -> tuple[GpuHolder, ...]:
    """All but `own_pid`, largest first; named only if `own_pid` is among them."""
    is_our_namespace = own_pid in held
    return _largest_first(
        GpuHolder(pid, size, _short_name(proc / str(pid)) if is_our_namespace else None)
        for pid, size in held.items()
        if pid != own_pid
    )


def _first_cuda_device(nvml: Any, environ: Mapping[str, str]) -> Any | None:
    """NVML's handle of CUDA device 0; None where the two orders cannot be matched."""
    entry = environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if entry.startswith(("GPU-", "MIG-")):
        return nvml.nvmlDeviceGetHandleByUUID(entry)
    handles = _handles(nvml)
    if not entry.isdecimal() or int(entry) >= len(handles):
        return None
    # CUDA puts the fastest GPU first unless told otherwise; NVML counts along the bus.
    is_same_order = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if not is_same_order and len({nvml.nvmlDeviceGetName(handle) for handle in handles}) > 1:
        return None
    return handles[int(entry)]


def first_gpu() -> tuple[str, int] | None:
    """Name and bytes of memory of the first GPU along the bus; None without one."""

    def ask(nvml: Any) -> tuple[str, int] | None:
        if nvml.nvmlDeviceGetCount() == 0:
            return None
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        return _text(nvml.nvmlDeviceGetName(handle)), int(
            nvml.nvmlDeviceGetMemoryInfo(handle).total
        )

    return ask_nvml(ask, None)


def first_gpu_uuid() -> str | None:
    """Of CUDA device 0, as CUDA_VISIBLE_DEVICES has it; None where NVML cannot tell."""

    def ask(nvml: Any) -> str | None:
        handle = _first_cuda_device(nvml, os.environ)
        return None if handle is None else _text(nvml.nvmlDeviceGetUUID(handle))

    return ask_nvml(ask, None)


def _short_name(process_folder: Path) -> str | None:
    try:
        name = (process_folder / "comm").read_text(errors="replace").strip()
    except OSError:
        return None
    return "".join(letter if letter.isprintable() else "?" for letter in name) or None


def _use(nvml: Any, index: int, pids: Collection[int]) -> GpuUse:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def ask(question: str, *args: object) -> Any:
        return optional(nvml, lambda: getattr(nvml, question)(handle, *args))

    memory, rates = ask("nvmlDeviceGetMemoryInfo"), ask("nvmlDeviceGetUtilizationRates")
    power, limit = ask("nvmlDeviceGetPowerUsage"), ask("nvmlDeviceGetEnforcedPowerLimit")
    running = ask("nvmlDeviceGetComputeRunningProcesses")
    slowed = _throttled_by(nvml, handle)
    return GpuUse(
        index=index,
        name=_text(ask("nvmlDeviceGetName") or "GPU"),
        utilisation=None if rates is None else rates.gpu / 100,
        memory_used_bytes=None if memory is None else int(memory.used),
        memory_total_bytes=None if memory is None else int(memory.total),
        power_w=None if power is None else power / 1000,
        power_limit_w=None if limit is None else limit / 1000,
        temperature_c=ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        throttle=None if slowed is None else ", ".join(word for _, word in slowed),
        server_bytes=_held_by(running, pids),
        processes=tuple(GpuHolder(one.pid, one.usedGpuMemory) for one in running or ()),
    )


def _held_by(running: Sequence[Any] | None, pids: Collection[int]) -> int | None:
    """None where the driver does not tell the bytes, as in a container."""
    held = [one.usedGpuMemory for one in running or () if one.pid in pids]
    return sum(held) if held and None not in held else None


def _link(nvml: Any, handles: list[Any], first: int, second: int) -> GpuLink:
    pair = (handles[first], handles[second])
    level = optional(nvml, lambda: int(nvml.nvmlDeviceGetTopologyCommonAncestor(*pair)))
    reads = nvml.NVML_P2P_CAPS_INDEX_READ
    p2p = optional(nvml, lambda: int(nvml.nvmlDeviceGetP2PStatus(*pair, reads)))
    return GpuLink(
        first=first,
        second=second,
        path=_named(_PATHS, level),
        p2p=_named(_P2P, p2p),
    )


def _named(names: tuple[tuple[int, str], ...], number: int | None) -> str | None:
    return None if number is None else dict(names).get(number, f"code {number}")


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")


def _look_up(pid: int) -> tuple[str | None, str | None]:
    """The kernel's short name, never the arguments: those may hold a key."""
    import psutil

    try:
        process = psutil.Process(pid)
        return process.name(), process.username()
    except psutil.Error:
        return None, None
    except KeyError:  # a user without an entry in the user table
        return None, None
