"""NVIDIA GPUs as NVML tells of them: driver, memory, compute capability. No CUDA, no torch."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from app.doctor.report import Check, Result
from app.output import human_bytes


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU; memory in bytes. `compute_capability` is (major, minor)."""

    name: str
    memory_bytes: int
    memory_used_bytes: int
    compute_capability: tuple[int, int]


@dataclass(frozen=True, slots=True)
class GpuReading:
    """The GPUs, or why there are none."""

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    cuda: str | None = None  # newest CUDA that the driver serves
    reason: str | None = None


def read_gpus() -> GpuReading:
    """Ask NVML once."""
    nvml = _import_nvml()
    if nvml is None:
        return GpuReading(reason="the Python package nvidia-ml-py is missing")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError_LibraryNotFound:
        return GpuReading(reason="NVML not found")
    except nvml.NVMLError as error:
        return GpuReading(reason=f"NVML does not start: {error}")
    try:
        return _read(nvml)
    except nvml.NVMLError as error:
        return GpuReading(reason=f"NVML fails: {error}")
    finally:
        nvml.nvmlShutdown()


def check_gpu(reading: GpuReading) -> Check:
    """The GPUs of this machine; to have none is no fault."""
    if not reading.gpus:
        seen = f"no NVIDIA GPU ({reading.reason or 'NVML lists none'})"
        if reading.reason in (None, "NVML not found"):
            return Check("gpu", "GPU", Result.SKIPPED, seen)
        todo = "nvidia-smi shows more; a driver and library of different versions need a restart"
        return Check("gpu", "GPU", Result.WARNING, seen, todo)
    gpus = "; ".join(_describe(index, gpu) for index, gpu in enumerate(reading.gpus))
    return Check("gpu", "GPU", Result.OK, f"{gpus}; driver {reading.driver}, CUDA {reading.cuda}")


def _import_nvml() -> ModuleType | None:
    try:
        with warnings.catch_warnings():
            # The package called pynvml warns that its successor should be installed instead.
            warnings.simplefilter("ignore", FutureWarning)
            import pynvml
    except ImportError:
        return None
    return pynvml  # type: ignore[no-any-return]


def _read(nvml: Any) -> GpuReading:
    gpus = []
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        capability = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        name = _text(nvml.nvmlDeviceGetName(handle))
        gpus.append(Gpu(name, int(memory.total), int(memory.used), (capability[0], capability[1])))
    cuda = int(nvml.nvmlSystemGetCudaDriverVersion())
    return GpuReading(
        gpus=tuple(gpus),
        driver=_text(nvml.nvmlSystemGetDriverVersion()),
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
    )


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")


def _describe(index: int, gpu: Gpu) -> str:
    major, minor = gpu.compute_capability
    return (
        f"{index}: {gpu.name}, {human_bytes(gpu.memory_used_bytes)} of "
        f"{human_bytes(gpu.memory_bytes)} used, compute capability {major}.{minor}"
    )
