"""GPUs by name: the memory that CUDA (or HIP) reports for them, and their compute capability.

The memory is what a program sees, a little less than on the box. Cards differ by some MiB with
driver and ECC; the plan names this as an assumption.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.errors import ExitCode, StokerError

if TYPE_CHECKING:
    from app.doctor.facts import GpuReading

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class PlannedGpu:
    """The device of a plan; `used_bytes` is what others hold, where it was measured."""

    name: str
    memory_bytes: int
    compute_capability: tuple[int, int] | None = None
    used_bytes: int = 0


_CARDS: Mapping[str, tuple[float, tuple[int, int] | None]] = {
    "t4": (14.56, (7, 5)),
    "v100-16gb": (15.77, (7, 0)),
    "v100-32gb": (31.73, (7, 0)),
    "rtx3060": (11.63, (8, 6)),
    "rtx3090": (23.57, (8, 6)),
    "rtx4060ti-16gb": (15.60, (8, 9)),
    "rtx4070": (11.60, (8, 9)),
    "rtx4080": (15.57, (8, 9)),
    "rtx4090": (23.52, (8, 9)),
    "rtx5080": (15.47, (12, 0)),
    "rtx5090": (31.36, (12, 0)),
    "rtxpro6000": (94.97, (12, 0)),
    "a10": (21.98, (8, 6)),
    "a10g": (21.98, (8, 6)),
    "a6000": (47.43, (8, 6)),
    "a40": (44.43, (8, 6)),
    "a100-40gb": (39.39, (8, 0)),
    "a100-80gb": (79.15, (8, 0)),
    "l4": (22.03, (8, 9)),
    "l40s": (44.39, (8, 9)),
    "h100": (79.10, (9, 0)),
    "h20": (95.08, (9, 0)),
    "h200": (139.72, (9, 0)),
    "gh200": (94.50, (9, 0)),
    "b200": (178.35, (10, 0)),
    "mi250": (63.98, None),
    "mi300x": (191.98, None),
}


def find_gpu(text: str) -> PlannedGpu:
    """A card by name, or any device by its memory, as in 24GiB."""
    size = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:GiB|G)", text)
    if size is not None and float(size.group(1)) > 0:
        return PlannedGpu(text, int(float(size.group(1)) * _GIB))
    key = re.sub(r"[\s_]+", "", text.lower().removeprefix("nvidia "))
    key = key if key in _CARDS else key.replace("-", "")
    for name, (gib, capability) in _CARDS.items():
        if key in (name, name.replace("-", ""), name.replace("rtx", "")):
            return PlannedGpu(name, int(gib * _GIB), capability)
    near = difflib.get_close_matches(key, _CARDS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    raise StokerError(
        f"--gpu {text} is no GPU that is known",
        hint=f"{hint}give the memory instead (24GiB), or cpu; known: {', '.join(_CARDS)}",
        exit_code=ExitCode.USAGE,
    )


def gpu_of_reading(reading: GpuReading) -> PlannedGpu | None:
    """The first GPU of a machine; None where there is none."""
    if not reading.gpus:
        return None
    first = reading.gpus[0]
    if first.mig:
        raise StokerError(
            f"{first.name} is split into MIG instances, and each has a part of its memory",
            hint="give an instance's memory, as in --gpu 10GiB (`nvidia-smi -L` lists them)",
            exit_code=ExitCode.USAGE,
        )
    return PlannedGpu(
        first.name, first.memory_bytes, first.compute_capability, first.memory_used_bytes
    )
