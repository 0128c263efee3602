"""The GPUs that the kernels are compiled for: their limits, and the one table of tile sizes.

Standard library only. Limits are those of NVIDIA's compute capabilities and of AMD's CDNA 3.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import ConfigError

KIB = 1024


@dataclass(frozen=True, slots=True)
class ProductTiles:
    """What one program multiplies with a weight of 8 bits: rows are tokens, columns outputs.

    `depth` inputs are added up in each step of the loop.
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Tiles:
    """How much of its input one program of a kernel works on, and with how many warps.

    `decode_keys` and `prefill_keys` are keys per step of a loop, `prefill_rows` the query rows
    (tokens x query heads of a group). A head of more than 128 numbers gets half of each.
    `row` is the part of a long row (vocabulary, feed-forward) that one program reads at once.
    """

    decode_keys: int
    decode_warps: int
    prefill_rows: int
    prefill_keys: int
    prefill_warps: int
    stages: int  # of the loops over keys: how many tiles are on their way at once
    row: int
    row_warps: int
    few: ProductTiles  # steps of up to `few.rows` tokens, whose products wait for the weights
    many: ProductTiles

    def product(self, tokens: int) -> ProductTiles:
        """Of a product with so many tokens."""
        return self.few if tokens <= self.few.rows else self.many


@dataclass(frozen=True, slots=True)
class Target:
    """One kind of GPU.

    `processors` is a usual number of multiprocessors, for the split of keys.
    """

    name: str
    backend: str  # cuda or hip
    architecture: int | str  # as triton.GPUTarget takes it
    warp_size: int
    shared_bytes: int  # that one program may use
    processor_shared_bytes: int
    processor_registers: int  # of 4 bytes, all threads together
    processor_threads: int
    max_programs: int  # on one multiprocessor
    processors: int
    register_granule: int  # registers that a warp gets at once, all its threads together
    half_dtype: str  # the 16-bit format that models run in: bf16 where the GPU multiplies it
    tiles: Tiles


_FEW = ProductTiles(16, 32, 128, 4, 4)
_MANY = ProductTiles(64, 128, 64, 8, 3)
_TURING = Tiles(
    *(32, 8, 32, 32, 8, 1, 1024, 4),
    few=ProductTiles(16, 32, 64, 4, 1),
    many=ProductTiles(64, 64, 32, 8, 1),
)
_AMPERE = Tiles(32, 4, 64, 32, 4, 2, 1024, 4, _FEW, _MANY)
_ADA = Tiles(64, 4, 64, 32, 4, 2, 1024, 4, _FEW, _MANY)
_HOPPER = Tiles(64, 4, 64, 64, 4, 2, 1024, 4, _FEW, _MANY)
_CDNA = Tiles(
    *(32, 4, 64, 32, 4, 1, 1024, 4),
    few=ProductTiles(16, 32, 128, 4, 1),
    many=ProductTiles(64, 64, 64, 8, 1),
)

TARGETS = (
    Target("sm_75", "cuda", 75, 32, 64 * KIB, 64 * KIB, 65536, 1024, 16, 40, 256, "fp16", _TURING),
    Target(
        "sm_80", "cuda", 80, 32, 163 * KIB, 164 * KIB, 65536, 2048, 32, 108, 256, "bf16", _AMPERE
    ),
    Target("sm_89", "cuda", 89, 32, 99 * KIB, 100 * KIB, 65536, 1536, 24, 128, 256, "bf16", _ADA),
    Target(
        "sm_90", "cuda", 90, 32, 227 * KIB, 228 * KIB, 65536, 2048, 32, 132, 256, "bf16", _HOPPER
    ),
    Target(
        "sm_100", "cuda", 100, 32, 227 * KIB, 228 * KIB, 65536, 2048, 32, 148, 256, "bf16", _HOPPER
    ),
    Target(
        "gfx942",
        "hip",
        "gfx942",
        64,
        64 * KIB,
        64 * KIB,
        4 * 512 * 64,
        2048,
        32,
        304,
        512,
        "bf16",
        _CDNA,
    ),
)

INTERPRETED = Target(
    *("interpreter", "cpu", "cpu", 1, 0, 0, 0, 0, 1, 3, 1, "bf16"),
    Tiles(
        *(32, 1, 32, 32, 1, 1, 4096, 1),
        few=ProductTiles(16, 64, 128, 1, 1),
        many=ProductTiles(32, 128, 128, 1, 1),
    ),
)
"""A CPU under Triton's interpreter: small tiles and few programs, so that short texts are cut."""


def target_named(name: str) -> Target:
    """The target called `name` (sm_90, gfx942)."""
    return next(target for target in TARGETS if target.name == name)


def target_of_capability(major: int, minor: int) -> Target:
    """The newest known target that a CUDA device of this compute capability can run.

    ConfigError below 7.5, which Triton no longer compiles for.
    """
    capability = major * 10 + minor
    fitting = [
        target
        for target in TARGETS
        if isinstance(target.architecture, int) and target.architecture <= capability
    ]
    if not fitting:
        raise ConfigError(
            f"they need a GPU of compute capability 7.5 or later, and this one has {major}.{minor}"
        )
    return fitting[-1]


def programs_per_processor(target: Target, registers: int, shared_bytes: int, warps: int) -> int:
    """How many programs of a kernel run on one multiprocessor at once; `registers` per thread."""
    granule = target.register_granule
    per_warp = -(-registers * target.warp_size // granule) * granule
    reserved = KIB if isinstance(target.architecture, int) and target.architecture >= 80 else 0
    return min(
        target.max_programs,
        target.processor_threads // (warps * target.warp_size),
        target.processor_registers // (max(per_warp, 1) * warps),
        target.processor_shared_bytes // max(shared_bytes + reserved, 1),
    )
