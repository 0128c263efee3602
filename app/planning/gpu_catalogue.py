"""GPUs by name: the memory that CUDA, HIP or SYCL reports for them, and their compute capability.

The memory is what a program sees, less than on the box. Drivers and ECC move it by some hundred
MiB, which a plan counts in; a card that comes in several sizes is asked for by its size.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.errors import UsageError
from engine.machine.sizes import GIB

if TYPE_CHECKING:
    from engine.machine.gpus import GpuReading

CUDA, ROCM, XPU, METAL = "cuda", "rocm", "xpu", "metal"
_DRIVERS_DIFFER, _SYSTEM_DIFFERS = 0.008, 0.03  # share of the memory, either way
# Chips whose ranks talk over NVLink; Volta, Ampere, Hopper and Blackwell for data centres.
_DATA_CENTRE = frozenset({(7, 0), (8, 0), (9, 0), (10, 0), (10, 3)})

_WITHOUT_FP8 = ("mi1", "mi2", "rx7", "w7")  # CDNA before 3 and RDNA 3

Capability = tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class PlannedGpu:
    """The device of a plan; `used_bytes` is what others hold, where it was measured.

    `memory_tolerance` is the share by which the memory of a card known by name may be off.
    """

    name: str
    memory_bytes: int
    compute_capability: Capability = None
    used_bytes: int = 0
    platform: str = CUDA
    is_unified: bool = False
    memory_tolerance: float = 0.0

    @property
    def is_rocm(self) -> bool:
        """Whether HIP runs on it."""
        return self.platform == ROCM

    @property
    def has_fp8_cache(self) -> bool:
        """Whether vLLM's attention reads a cache in fp8 there; for all that is known."""
        if self.platform != CUDA:
            return self.platform == ROCM and not self.name.startswith(_WITHOUT_FP8)
        return self.compute_capability is None or self.compute_capability >= (8, 0)

    @property
    def has_fp8_weights(self) -> bool:
        """Whether vLLM rounds weights to fp8 on load there."""
        if self.platform != CUDA:
            return self.has_fp8_cache
        return self.compute_capability is None or self.compute_capability >= (7, 5)

    @property
    def is_data_centre_chip(self) -> bool:
        """Whether it is of a kind that NVLink joins."""
        return self.compute_capability in _DATA_CENTRE


@dataclass(frozen=True, slots=True)
class _Family:
    """One card; `sizes` are GiB as reported, by the size on the box. The first is the usual one.

    `must_choose` where no size is the usual one.
    """

    capability: Capability
    sizes: Mapping[int, float]
    platform: str = CUDA
    is_unified: bool = False
    must_choose: bool = False


def _one(capability: Capability, box: int, gib: float) -> _Family:
    return _Family(capability, {box: gib})


def _several(capability: Capability, **sizes: float) -> _Family:
    return _Family(capability, {int(k[1:]): v for k, v in sizes.items()}, must_choose=True)


def _amd(box: int, gib: float) -> _Family:
    return _Family(None, {box: gib}, ROCM)


def _intel(box: int, gib: float) -> _Family:
    return _Family(None, {box: gib}, XPU)


def _unified(capability: Capability, box: int, gib: float, platform: str = CUDA) -> _Family:
    return _Family(capability, {box: gib}, platform, is_unified=True)


_TURING, _AMPERE, _ADA, _BLACKWELL = (7, 5), (8, 6), (8, 9), (12, 0)

_FAMILIES: Mapping[str, _Family] = {
    # Data centre, NVIDIA
    "t4": _one(_TURING, 16, 14.56),
    "v100": _several((7, 0), _16=15.77, _32=31.73),
    "a2": _one(_AMPERE, 16, 14.53),
    "a10": _one(_AMPERE, 24, 21.98),
    "a10g": _one(_AMPERE, 24, 22.03),
    "a16": _one(_AMPERE, 16, 14.53),
    "a30": _one((8, 0), 24, 23.50),
    "a40": _one(_AMPERE, 48, 44.43),
    "a100": _several((8, 0), _40=39.39, _80=79.15),
    "a800": _several((8, 0), _40=39.39, _80=79.15),
    "l4": _one(_ADA, 24, 22.03),
    "l20": _one(_ADA, 48, 44.39),
    "l40": _one(_ADA, 48, 44.39),
    "l40s": _one(_ADA, 48, 44.39),
    "h100": _Family((9, 0), {80: 79.18, 94: 93.10, 96: 94.50}),
    "h800": _one((9, 0), 80, 79.18),
    "h20": _Family((9, 0), {96: 95.08, 141: 139.80}),
    "h200": _one((9, 0), 141, 139.80),
    "gh200": _Family((9, 0), {96: 94.50, 144: 142.00}),
    "b100": _one((10, 0), 192, 178.35),
    "b200": _one((10, 0), 180, 178.35),
    "gb200": _one((10, 0), 186, 184.31),
    "b300": _one((10, 3), 288, 267.70),
    "gb300": _one((10, 3), 288, 276.60),
    # Unified memory
    "gb10": _unified((12, 1), 128, 121.63),
    "jetsonthor": _unified((11, 0), 128, 122.80),
    "jetsonagxorin": _Family((8, 7), {64: 61.37, 32: 29.96}, is_unified=True),
    "jetsonorinnx": _Family((8, 7), {16: 15.29, 8: 7.44}, is_unified=True),
    "jetsonorinnano": _unified((8, 7), 8, 7.44),
    "mi300a": _unified(None, 128, 127.0, ROCM),
    "strixhalo": _unified(None, 128, 124.0, ROCM),
    # Workstation, NVIDIA
    "rtx6000": _one(_TURING, 24, 23.65),
    "rtx8000": _one(_TURING, 48, 47.45),
    "a2000": _Family(_AMPERE, {12: 11.64, 6: 5.67}),
    "a4000": _one(_AMPERE, 16, 15.60),
    "a4500": _one(_AMPERE, 20, 19.56),
    "a5000": _one(_AMPERE, 24, 23.57),
    "a5500": _one(_AMPERE, 24, 23.57),
    "a6000": _one(_AMPERE, 48, 47.43),
    "rtx2000ada": _one(_ADA, 16, 15.57),
    "rtx4000ada": _one(_ADA, 20, 19.55),
    "rtx4500ada": _one(_ADA, 24, 23.52),
    "rtx5000ada": _one(_ADA, 32, 31.49),
    "rtx5880ada": _one(_ADA, 48, 47.38),
    "rtx6000ada": _one(_ADA, 48, 47.38),
    "rtxpro2000": _one(_BLACKWELL, 16, 15.47),
    "rtxpro4000": _one(_BLACKWELL, 24, 23.47),
    "rtxpro4500": _one(_BLACKWELL, 32, 31.36),
    "rtxpro5000": _Family(_BLACKWELL, {48: 47.30, 72: 70.90}),
    "rtxpro6000": _one(_BLACKWELL, 96, 94.97),
    # Consumer, NVIDIA
    "rtx2060": _Family(_TURING, {6: 5.79, 12: 11.65}),
    "rtx2070": _one(_TURING, 8, 7.76),
    "rtx2080": _one(_TURING, 8, 7.76),
    "rtx2080ti": _Family(_TURING, {11: 10.75, 22: 21.50}),
    "titanrtx": _one(_TURING, 24, 23.65),
    "rtx3050": _Family(_AMPERE, {8: 7.66, 6: 5.68}),
    "rtx3060": _Family(_AMPERE, {12: 11.63, 8: 7.66}),
    "rtx3060ti": _one(_AMPERE, 8, 7.66),
    "rtx3070": _one(_AMPERE, 8, 7.66),
    "rtx3070ti": _one(_AMPERE, 8, 7.66),
    "rtx3080": _Family(_AMPERE, {10: 9.65, 12: 11.63, 20: 19.50}),
    "rtx3080ti": _one(_AMPERE, 12, 11.63),
    "rtx3090": _one(_AMPERE, 24, 23.62),
    "rtx3090ti": _one(_AMPERE, 24, 23.62),
    "rtx4060": _one(_ADA, 8, 7.62),
    "rtx4060ti": _several(_ADA, _8=7.62, _16=15.60),
    "rtx4070": _one(_ADA, 12, 11.60),
    "rtx4070super": _one(_ADA, 12, 11.60),
    "rtx4070ti": _one(_ADA, 12, 11.60),
    "rtx4070tisuper": _one(_ADA, 16, 15.57),
    "rtx4080": _one(_ADA, 16, 15.57),
    "rtx4080super": _one(_ADA, 16, 15.57),
    "rtx4090": _Family(_ADA, {24: 23.52, 48: 47.38}),
    "rtx4090d": _Family(_ADA, {24: 23.52, 48: 47.38}),
    "rtx3050laptop": _Family(_AMPERE, {4: 3.68, 6: 5.68}),
    "rtx3060laptop": _one(_AMPERE, 6, 5.68),
    "rtx3070laptop": _one(_AMPERE, 8, 7.66),
    "rtx3070tilaptop": _one(_AMPERE, 8, 7.66),
    "rtx3080laptop": _several(_AMPERE, _8=7.66, _16=15.60),
    "rtx3080tilaptop": _one(_AMPERE, 16, 15.60),
    "rtx4050laptop": _one(_ADA, 6, 5.64),
    "rtx4060laptop": _one(_ADA, 8, 7.62),
    "rtx4070laptop": _one(_ADA, 8, 7.62),
    "rtx4080laptop": _one(_ADA, 12, 11.60),
    "rtx4090laptop": _one(_ADA, 16, 15.57),
    "rtx5050": _one(_BLACKWELL, 8, 7.53),
    "rtx5060": _one(_BLACKWELL, 8, 7.53),
    "rtx5060ti": _several(_BLACKWELL, _8=7.53, _16=15.47),
    "rtx5070": _one(_BLACKWELL, 12, 11.50),
    "rtx5070ti": _one(_BLACKWELL, 16, 15.47),
    "rtx5080": _one(_BLACKWELL, 16, 15.47),
    "rtx5090": _one(_BLACKWELL, 32, 31.36),
    "rtx5090d": _one(_BLACKWELL, 32, 31.36),
    "rtx5050laptop": _one(_BLACKWELL, 8, 7.53),
    "rtx5060laptop": _one(_BLACKWELL, 8, 7.53),
    "rtx5070laptop": _one(_BLACKWELL, 8, 7.53),
    "rtx5070tilaptop": _one(_BLACKWELL, 12, 11.50),
    "rtx5080laptop": _one(_BLACKWELL, 16, 15.47),
    "rtx5090laptop": _one(_BLACKWELL, 24, 23.47),
    # AMD
    "mi100": _amd(32, 31.98),
    "mi210": _amd(64, 63.98),
    "mi250": _amd(64, 63.98),
    "mi250x": _amd(64, 63.98),
    "mi300x": _amd(192, 191.90),
    "mi308x": _amd(192, 191.90),
    "mi325x": _amd(256, 255.80),
    "mi350x": _amd(288, 287.80),
    "mi355x": _amd(288, 287.80),
    "rx7900xtx": _amd(24, 23.98),
    "rx7900xt": _amd(20, 19.98),
    "rx7900gre": _amd(16, 15.98),
    "rx9070xt": _amd(16, 15.92),
    "rx9070": _amd(16, 15.92),
    "w7800": _Family(None, {32: 31.98, 48: 47.98}, ROCM),
    "w7900": _amd(48, 47.98),
    "r9700": _amd(32, 31.86),
    # Intel
    "arca770": _Family(None, {16: 15.11, 8: 7.55}, XPU),
    "arcb570": _intel(10, 9.40),
    "arcb580": _intel(12, 11.33),
    "arcprob50": _intel(16, 15.10),
    "arcprob60": _intel(24, 22.70),
    "arcprob70": _intel(32, 30.30),
    "max1100": _intel(48, 47.90),
    "max1550": _Family(None, {128: 122.60, 64: 61.30}, XPU),
    "gaudi2": _intel(96, 94.60),
    "gaudi3": _intel(128, 126.50),
}

_OTHER_NAMES: Mapping[str, str] = {
    "dgxspark": "gb10",
    "spark": "gb10",
    "thor": "jetsonthor",
    "agxorin": "jetsonagxorin",
    "b580": "arcb580",
    "b570": "arcb570",
    "a770": "arca770",
    "aipror9700": "r9700",
    "prow7900": "w7900",
    "prow7800": "w7800",
    "ryzenaimax+395": "strixhalo",
    "ryzenaimax395": "strixhalo",
    "titan": "titanrtx",
    "gh200480gb": "gh200",  # as its driver says, which counts the memory of the CPU beside it
}
_MAKERS = re.compile(
    r"nvidia|geforce|tesla|quadro|graphics|amd|instinct|radeon|intel|habana|data center gpu"
)
_APPLE = re.compile(
    r"(?:apple)?(?P<chip>m[1-9](?:pro|max|ultra)?)(?P<memory>[1-9]\d{0,3})?(?:g|gb|gib)?"
)
_MOST_OF_TWO_THIRDS = 36  # GB
_H100_NVL = 94  # GB
_FORMS = re.compile(
    r"sxm\d?|pcie|nvl|hbm\d?e?|oam|blackwell|(?:server|workstation)edition|maxq\w*|generation"
)


def gpu_names() -> tuple[str, ...]:
    """The cards that `find_gpu` knows by name; of a card in several sizes, each of them."""
    return tuple(
        name
        for key, family in _FAMILIES.items()
        for name in (_names_of(key, family) if family.must_choose else [key])
    )


def find_gpu(text: str) -> PlannedGpu:
    """A card by name, or any device by its memory, as in 24GiB.

    StokerError (2) names what is near, or the sizes that a card comes in.
    """
    size = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:GiB|G)", text)
    if size is not None and float(size.group(1)) > 0:
        return PlannedGpu(text, int(float(size.group(1)) * GIB))
    if (apple := _APPLE.fullmatch(re.sub(r"[\s_-]+", "", text.lower()))) is not None:
        return _apple_gpu(text, apple)
    key, box = _key_and_box(text)
    if key in _FAMILIES:
        family = _FAMILIES[key]
        if box is None and family.must_choose:
            raise UsageError(
                f"--gpu {text} comes in several sizes",
                hint=f"say which: {' or '.join(_names_of(key, family))}",
            )
        box = next(iter(family.sizes)) if box is None else box
        if box in family.sizes:
            return _card(key, box)
        raise UsageError(
            f"--gpu {text} is no size that this card comes in",
            hint=f"known: {', '.join(_names_of(key, family))}; or give the memory, as in 24GiB",
        )
    near = _near_names(key)
    hint = f"did you mean {near[0]}? " if near else ""
    raise UsageError(
        f"--gpu {text} is no GPU that is known",
        hint=f"{hint}give the memory instead (24GiB), or cpu; "
        "`stoker plan --gpus` lists what is known",
    )


def _near_names(key: str) -> list[str]:
    """At most one; none for a size that only misses its unit, as in 24GB."""
    if re.fullmatch(r"[\d.]+[gmt]i?b?", key):
        return []
    return difflib.get_close_matches(key, [*_FAMILIES, *_OTHER_NAMES], n=1, cutoff=0.5)


def _apple_gpu(text: str, found: re.Match[str]) -> PlannedGpu:
    """Metal's share of the unified memory: two thirds, and three quarters of more than 36 GB."""
    chip, memory = found["chip"], found["memory"]
    if memory is None:
        raise UsageError(
            f"--gpu {text} comes with several sizes of unified memory",
            hint=f"say which, as in {chip}-64gb",
        )
    size = int(memory) * GIB
    share = size * 3 // 4 if int(memory) > _MOST_OF_TWO_THIRDS else size * 2 // 3
    name = f"{chip}-{memory}gb"
    return PlannedGpu(
        name, share, platform=METAL, is_unified=True, memory_tolerance=_SYSTEM_DIFFERS
    )


def known_gpus() -> Iterator[PlannedGpu]:
    """Every card in every size, as `--gpu` takes it."""
    return (_card(key, box) for key, family in _FAMILIES.items() for box in family.sizes)


def _card(key: str, box: int) -> PlannedGpu:
    family = _FAMILIES[key]
    is_usual = not family.must_choose and box == next(iter(family.sizes))
    is_certain = family.platform == CUDA and not family.is_unified
    return PlannedGpu(
        key if is_usual else f"{key}-{box}gb",
        int(family.sizes[box] * GIB),
        family.capability,
        platform=family.platform,
        is_unified=family.is_unified,
        memory_tolerance=_DRIVERS_DIFFER if is_certain else _SYSTEM_DIFFERS,
    )


def _names_of(key: str, family: _Family) -> list[str]:
    return [_card(key, box).name for box in family.sizes]


def _key_and_box(text: str) -> tuple[str, int | None]:
    """`NVIDIA A100-SXM4-80GB` -> a100 and 80; no size where none is named."""
    plain = re.sub(r"[\s_-]+", "", _MAKERS.sub("", text.lower()))
    plain = (_FORMS.sub("", plain) or plain).removesuffix("gpu")
    if plain == "h100" and "nvl" in text.lower():  # whose name alone tells its size
        return plain, _H100_NVL
    spellings = (plain, f"rtx{plain}", plain.removeprefix("rtx"))
    for name in spellings:
        name = _OTHER_NAMES.get(name, name)
        if name in _FAMILIES:
            return name, None
    for name in spellings:
        for key in sorted(_FAMILIES, key=len, reverse=True):  # a100-40gb is no a10
            size = re.fullmatch(rf"{re.escape(key)}([1-9]\d{{0,2}})g(?:ib|b)?", name)
            if size is not None:
                return key, int(size.group(1))
    return plain, None


def gpu_of_reading(reading: GpuReading) -> PlannedGpu | None:
    """The first GPU of a machine; None where there is none."""
    if not reading.gpus:
        return None
    first = reading.gpus[0]
    if first.mig:
        raise UsageError(
            f"{first.name} is split into MIG instances, and each has a part of its memory",
            hint="give an instance's memory, as in --gpu 10GiB (`nvidia-smi -L` lists them)",
        )
    key, _ = _key_and_box(first.name)
    return PlannedGpu(
        first.name,
        first.memory_bytes,
        first.compute_capability,
        first.memory_used_bytes,
        is_unified=key in _FAMILIES and _FAMILIES[key].is_unified,
    )
