"""Who holds a GPU's memory, as NVML tells it. No CUDA, no torch.

A process is named by the kernel's short name for it, never by its arguments: those may hold a key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.kv_sizing import format_gib
from engine.machine.nvml import ask_nvml

_SHOWN = 4


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One holder. `memory_bytes` is None where the driver does not tell."""

    pid: int
    memory_bytes: int | None
    name: str | None = None  # None where the pid cannot be looked up from here


def read_other_processes() -> tuple[GpuProcess, ...]:
    """The other processes on this process's first GPU, largest first; empty when NVML is no help.

    To be called with a CUDA context open: then NVML counts this process too, which shows whether
    its pids are the ones that this process knows or those of a host outside the container.
    """
    return others(ask_nvml(_held_on_first, {}), os.getpid(), Path("/proc"))


def _held_on_first(nvml: Any) -> dict[int, int | None]:
    handle = _first_cuda_device(nvml, os.environ)
    return {} if handle is None else held_bytes(nvml, handle)


def others(
    held_bytes: Mapping[int, int | None], own_pid: int, proc: Path
) -> tuple[GpuProcess, ...]:
    """All but `own_pid`, largest first; named only if `own_pid` is among them."""
    is_our_namespace = own_pid in held_bytes
    processes = [
        GpuProcess(pid, size, _short_name(proc / str(pid)) if is_our_namespace else None)
        for pid, size in held_bytes.items()
        if pid != own_pid
    ]
    return tuple(sorted(processes, key=lambda one: (-(one.memory_bytes or 0), one.pid)))


def describe(processes: Sequence[GpuProcess]) -> str:
    """`pid 1234 python (12.3 GiB), pid 77 (size unknown)`."""
    shown = [_describe_one(process) for process in processes[:_SHOWN]]
    if len(processes) > _SHOWN:
        shown.append(f"{len(processes) - _SHOWN} more")
    return ", ".join(shown)


def _describe_one(process: GpuProcess) -> str:
    size = process.memory_bytes
    label = f"{process.pid}" if process.name is None else f"{process.pid} {process.name}"
    return f"pid {label} ({'size unknown' if size is None else f'{format_gib(size)} GiB'})"


def _first_cuda_device(nvml: Any, environ: Mapping[str, str]) -> Any | None:
    """NVML's handle of CUDA device 0; None where the two orders cannot be matched."""
    entry = environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if entry.startswith(("GPU-", "MIG-")):
        return nvml.nvmlDeviceGetHandleByUUID(entry)
    count = nvml.nvmlDeviceGetCount()
    if not entry.isdecimal() or int(entry) >= count:
        return None
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    # CUDA puts the fastest GPU first unless told otherwise; NVML counts along the bus.
    is_same_order = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if not is_same_order and len({nvml.nvmlDeviceGetName(handle) for handle in handles}) > 1:
        return None
    return handles[int(entry)]


def held_bytes(nvml: Any, handle: Any) -> dict[int, int | None]:
    """pid -> bytes; a process that both computes and draws is listed twice."""
    return {
        int(process.pid): process.usedGpuMemory
        for process in (
            *nvml.nvmlDeviceGetGraphicsRunningProcesses(handle),
            *nvml.nvmlDeviceGetComputeRunningProcesses(handle),
        )
    }


def _short_name(process_folder: Path) -> str | None:
    try:
        name = (process_folder / "comm").read_text(errors="replace").strip()
    except OSError:
        return None
    return "".join(letter if letter.isprintable() else "?" for letter in name) or None
