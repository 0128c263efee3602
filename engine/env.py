"""What is known of this host without importing torch: device, folders, CPU number formats."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.machine.device_starts import DeviceStarts

DEVICES_VARIABLE = "STOKER_DEVICES_DIR"
STATE_VARIABLE = "STOKER_STATE_DIR"
COUNTS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""prometheus_client's: processes that have it as they import that count in files there."""

PROBE_SALT = "stoker-probe"
"""`cache_salt` of the requests by which a supervisor looks whether tokens come. They are nobody's
traffic, and no record of it has them.
"""


@dataclass(frozen=True, slots=True)
class HostDevice:
    """What `--device auto` means here. `memory_bytes` is the GPU's total, None on a CPU."""

    kind: str  # cpu or cuda
    name: str
    memory_bytes: int | None


def user_cache_dir() -> Path:
    """Folder of what can be made again (models, built kernels): STOKER_CACHE_DIR, else XDG's."""
    override = os.environ.get("STOKER_CACHE_DIR")
    if override:
        return Path(override).expanduser().absolute()
    import platformdirs

    return platformdirs.user_cache_path("stoker", appauthor=False)


def models_dir() -> Path:
    """Folder of Stoker's own models and of converted GGUF files; it need not be there."""
    return user_cache_dir() / "models"


def user_state_dir() -> Path:
    """Folder of what this machine's runs left behind: STOKER_STATE_DIR, else XDG's."""
    override = os.environ.get(STATE_VARIABLE)
    if override:
        return Path(override).expanduser().absolute()
    import platformdirs

    return platformdirs.user_state_path("stoker", appauthor=False)


def user_runtime_dir() -> tuple[Path, str]:
    """Folder of what ends with the session, and the variable that moves it; need not be there."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and not os.environ.get(STATE_VARIABLE) and os.access(base, os.W_OK):
        return Path(base) / "stoker", "XDG_RUNTIME_DIR"
    return user_state_dir() / "run", STATE_VARIABLE


def device_starts(device: str) -> DeviceStarts:
    """The starts of this user's engines on `cpu`, whose memory is the RAM, or on `cuda`.

    Services have a state folder each, and are told of one place that they share.
    """
    from engine.machine.device_starts import DeviceStarts

    if device == "cpu":
        name = "ram"
    else:
        from engine.machine.gpus import first_gpu_uuid

        name = first_gpu_uuid() or "gpu"
    shared = os.environ.get(DEVICES_VARIABLE)
    folder = Path(shared) if shared else user_runtime_dir()[0] / "devices"
    return DeviceStarts(folder / name)


def detect_device() -> HostDevice:
    """The first GPU that the installed torch is built for, else the CPU.

    NVML tells of NVIDIA's, the driver's files of AMD's, which torch calls `cuda`, too.
    """
    gpu = None
    if torch_build_version("cuda") is not None:
        from engine.machine.gpus import first_gpu

        gpu = first_gpu()
    elif torch_build_version("hip") is not None:
        from engine.machine.amd_gpus import first_amd_gpu

        gpu = first_amd_gpu()
    if gpu is not None:
        return HostDevice("cuda", *gpu)
    return HostDevice("cpu", platform.machine(), None)


def torch_build_version(platform_name: str) -> str | None:
    """Version of `cuda` or `hip` (ROCm) of the installed torch build, by its version file; None
    where it is built for something else.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    version_file = Path(spec.submodule_search_locations[0]) / "version.py"
    if not version_file.is_file():
        return None
    pattern = rf"^{platform_name}\b[^=]*=\s*'([^']+)'"
    match = re.search(pattern, version_file.read_text(), re.MULTILINE)
    return match.group(1) if match else None


def cpu_flags() -> frozenset[str]:
    """Feature words of the first CPU in /proc/cpuinfo; empty where there is no such file."""
    path = Path("/proc/cpuinfo")
    if not path.is_file():
        return frozenset()
    for line in path.read_text(errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def cpu_has_bf16() -> bool:
    """Whether bf16 products run in hardware (AVX512-BF16, AMX, Arm); else float32 is faster."""
    return bool(cpu_flags() & {"avx512_bf16", "amx_bf16", "bf16"}) or platform.system() == "Darwin"
