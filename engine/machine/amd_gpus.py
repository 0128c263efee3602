"""AMD's GPUs as Linux's amdgpu driver shows them in /sys: no library of ROCm is needed to ask."""

from __future__ import annotations

from pathlib import Path

_DRM = Path("/sys/class/drm")
_VENDOR = "0x1002"
_LEAST_BYTES = 4 << 30  # a processor's own graphics get less of the RAM


def first_amd_gpu(folder: Path = _DRM) -> tuple[str, int] | None:
    """Name and bytes of memory of the first GPU along the bus; None without one.

    Graphics that are part of a CPU do not count.
    """
    devices = {(card / "device").resolve() for card in folder.glob("card*")}
    for device in sorted(devices):
        if _text(device / "vendor") != _VENDOR:
            continue
        memory = _text(device / "mem_info_vram_total")
        if memory.isdecimal() and int(memory) >= _LEAST_BYTES:
            return _text(device / "product_name") or "AMD GPU", int(memory)
    return None


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""
