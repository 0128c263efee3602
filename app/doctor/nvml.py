"""Reads the GPUs from NVML, once; the module that talks to the driver is given, so tests script it.

What a driver or a card cannot tell stays None; only the list, the names and the memory are needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.doctor.facts import Gpu, GpuHolder, GpuLink, GpuReading
from engine.machine.nvml import import_nvml, started

# Bits that cost speed because something is wrong; idle, power cap and chosen clocks are normal.
_THROTTLED_BY = (
    (0x8, "hardware slowdown"),
    (0x20, "software thermal slowdown"),
    (0x40, "hardware thermal slowdown"),
    (0x80, "power brake"),
)
_PATHS = (
    *((0, "same board"), (10, "one PCIe switch"), (20, "several PCIe switches")),
    *((30, "one host bridge"), (40, "one NUMA node"), (50, "the link between sockets")),
)
_P2P = (
    *((0, "ok"), (1, "the chipset does not support it"), (2, "the GPU does not support it")),
    *((3, "the topology does not support it"), (4, "switched off"), (5, "not supported")),
)
_NUM_NVLINKS = 18

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
    handles = [nvml.nvmlDeviceGetHandleByIndex(at) for at in range(nvml.nvmlDeviceGetCount())]
    cuda = _optional(nvml, lambda: int(nvml.nvmlSystemGetCudaDriverVersion()))
    return GpuReading(
        gpus=tuple(_gpu(nvml, handle, look_up) for handle in handles),
        links=tuple(
            _link(nvml, handles, first, second)
            for first in range(len(handles))
            for second in range(first + 1, len(handles))
        ),
        driver=_optional(nvml, lambda: _text(nvml.nvmlSystemGetDriverVersion())),
        cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
    )


def _gpu(nvml: Any, handle: Any, look_up: LookUp) -> Gpu:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    mig = _optional(nvml, lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0]))
    return Gpu(
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=int(memory.total),
        memory_used_bytes=int(memory.used),
        compute_capability=(int(major), int(minor)),
        mig=mig,
        mig_instances=_mig_instances(nvml, handle) if mig else 0,
        persistence=_optional(nvml, lambda: bool(nvml.nvmlDeviceGetPersistenceMode(handle))),
        ecc=_optional(nvml, lambda: bool(nvml.nvmlDeviceGetEccMode(handle)[0])),
        ecc_errors=_optional(nvml, lambda: _ecc_errors(nvml, handle)),
        throttled_by=_throttled_by(nvml, handle),
        nvlinks=_nvlinks(nvml, handle),
        holders=_holders(nvml, handle, look_up),
    )


def _mig_instances(nvml: Any, handle: Any) -> int:
    most = _optional(nvml, lambda: int(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))) or 0
    found = (
        _optional(nvml, lambda at=at: nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, at))
        for at in range(most)
    )
    return sum(one is not None for one in found)


def _ecc_errors(nvml: Any, handle: Any) -> int:
    uncorrected, volatile = (
        nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        nvml.NVML_VOLATILE_ECC,
    )
    return int(nvml.nvmlDeviceGetTotalEccErrors(handle, uncorrected, volatile))


def _throttled_by(nvml: Any, handle: Any) -> tuple[str, ...]:
    bits = _optional(nvml, lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))) or 0
    return tuple(name for bit, name in _THROTTLED_BY if bits & bit)


def _nvlinks(nvml: Any, handle: Any) -> int:
    active = 0
    for link in range(_NUM_NVLINKS):
        state = _optional(nvml, lambda link=link: int(nvml.nvmlDeviceGetNvLinkState(handle, link)))
        if state is None:  # this card has no such link, nor any after it
            break
        active += state
    return active


def _holders(nvml: Any, handle: Any, look_up: LookUp) -> tuple[GpuHolder, ...]:
    """pid, size, name and user; a process that both computes and draws is listed by NVML twice."""
    sizes: dict[int, int | None] = {}
    for read in (
        nvml.nvmlDeviceGetGraphicsRunningProcesses,
        nvml.nvmlDeviceGetComputeRunningProcesses,
    ):
        for process in _optional(nvml, lambda read=read: read(handle)) or ():
            sizes[int(process.pid)] = process.usedGpuMemory
    holders = []
    for pid, size in sorted(sizes.items(), key=lambda one: (-(one[1] or 0), one[0])):
        name, user = look_up(pid)
        holders.append(GpuHolder(pid=pid, bytes=size, name=name, user=user))
    return tuple(holders)


def _link(nvml: Any, handles: list[Any], first: int, second: int) -> GpuLink:
    pair = (handles[first], handles[second])
    level = _optional(nvml, lambda: int(nvml.nvmlDeviceGetTopologyCommonAncestor(*pair)))
    reads = nvml.NVML_P2P_CAPS_INDEX_READ
    p2p = _optional(nvml, lambda: int(nvml.nvmlDeviceGetP2PStatus(*pair, reads)))
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


def _optional(nvml: Any, read: Callable[..., Any]) -> Any:
    """What `read` returns, or None where this card, driver or pynvml cannot tell."""
    try:
        return read()
    except (nvml.NVMLError, AttributeError):
        return None


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
