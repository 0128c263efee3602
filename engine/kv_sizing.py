"""KV cache arithmetic shared by the engine and by planning: bytes -> blocks -> tokens ->
concurrency.

Rules from vLLM's v1/kv_cache_interface.py, v1/core/kv_cache_utils.py and v1/worker/utils.py.
Integers are bytes unless the name says otherwise. No torch.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.config import CacheConfig
from engine.errors import ConfigError, MemoryBudgetError
from engine.machine.sizes import GIB
from engine.model_config import ModelConfig

_CPU_CAP_BYTES = 4 * GIB

_DTYPE_BYTES = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}
_PADDING_RATIO = 1.5  # below it, layers of the smaller kind are padded instead of split finely


@dataclass(frozen=True, slots=True)
class KVCacheGroup:
    """Layers that share one block table. `sliding_window` is in tokens, None for full attention."""

    layers: tuple[int, ...]
    sliding_window: int | None = None


FULL_ATTENTION = (KVCacheGroup(()),)
"""One group for code that does not care which layers it has."""


def group_layers(windows: Sequence[int | None]) -> tuple[KVCacheGroup, ...]:
    """Split layers of several kinds into groups of equal size, full attention first.

    Every block can then serve any group: it is as large as the pages of one group
    (_get_kv_cache_groups_uniform_page_size in vLLM's v1/core/kv_cache_utils.py).
    """
    kinds: dict[int | None, list[int]] = {}
    for layer, window in enumerate(windows):
        kinds.setdefault(window, []).append(layer)
    counts = [len(layers) for layers in kinds.values()]
    size = max(counts) if max(counts) < _PADDING_RATIO * min(counts) else min(counts)
    groups = []
    for window in sorted(kinds, key=lambda kind: (kind is not None, kind or 0)):
        layers = kinds[window]
        number = -(-len(layers) // size)
        groups += [KVCacheGroup(tuple(layers[i::number]), window) for i in range(number)]
    return tuple(groups)


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """Shape of the cache of one device; without `groups` every layer has full attention.

    `dtype_bytes` is the size of one cached value. `in_flight_tokens` are the tokens that one step
    may add before blocks outside a sliding window are given back. `has_values` is False where
    keys and values are one compressed vector (MLA).
    """

    block_size: int
    num_kv_heads: int
    head_dim: int
    num_layers: int
    dtype_bytes: int
    groups: tuple[KVCacheGroup, ...] = ()
    in_flight_tokens: int = 0
    has_values: bool = True

    def __post_init__(self) -> None:
        if not self.groups:
            object.__setattr__(self, "groups", (KVCacheGroup(tuple(range(self.num_layers))),))

    @property
    def page_bytes(self) -> int:
        """One layer's share of one block: keys and values."""
        sides = 2 if self.has_values else 1
        return self.block_size * self.num_kv_heads * sides * self.head_dim * self.dtype_bytes

    @property
    def layers_per_block(self) -> int:
        """Pages in one block: the layers of the largest group."""
        return max(len(group.layers) for group in self.groups)

    @property
    def bytes_per_block(self) -> int:
        """All pages of one block."""
        return self.page_bytes * self.layers_per_block

    def blocks_for(self, num_tokens: int) -> int:
        """Length of one block table of a request of `num_tokens`."""
        return -(-num_tokens // self.block_size)

    def blocks_per_request(self, num_tokens: int) -> int:
        """Blocks of all groups that a request of `num_tokens` can hold at once."""
        return sum(self.blocks_of_group(group, num_tokens) for group in self.groups)

    def blocks_of_group(self, group: KVCacheGroup, num_tokens: int) -> int:
        """Blocks of one group; a sliding window holds its last tokens and the step's own."""
        return blocks_held(num_tokens, group.sliding_window, self.in_flight_tokens, self.block_size)

    def bytes_for_one_request(self, num_tokens: int) -> int:
        """Of a cache that holds one request of `num_tokens`, with its null block."""
        return (self.blocks_per_request(num_tokens) + 1) * self.bytes_per_block


def blocks_held(num_tokens: int, window: int | None, in_flight_tokens: int, block_size: int) -> int:
    """Most blocks of one group that a request of `num_tokens` holds at once.

    A sliding window holds its last tokens and the step's own, wherever it begins in a block.
    """
    blocks = -(-num_tokens // block_size)
    if window is None:
        return blocks
    return min(blocks, -(-(window - 1 + in_flight_tokens) // block_size) + 1)


def kv_cache_spec(
    model: ModelConfig,
    *,
    block_size: int,
    cache_dtype: str,
    in_flight_tokens: int,
    tensor_parallel_size: int = 1,
    layers: range | None = None,
) -> KVCacheSpec:
    """The cache of one rank; `layers` are those of its pipeline stage, all when None."""
    if model.is_encoder:  # nothing is cached; a block still has a size, to be counted with
        return KVCacheSpec(block_size, num_kv_heads=1, head_dim=1, num_layers=1, dtype_bytes=1)
    own = [layer for layer, source in enumerate(model.kv_sources) if layer == source]
    windows = [model.layer_windows[layer] for layer in own if layers is None or layer in layers]
    rank = model.kv_lora_rank
    return spec_of_rank(
        windows,
        model.num_key_value_heads,
        model.head_dim,
        latent_dim=None if rank is None else rank + model.qk_rope_head_dim,
        tensor_parallel_size=tensor_parallel_size,
        block_size=block_size,
        dtype_bytes=cache_dtype_bytes(cache_dtype, model.dtype),
        in_flight_tokens=in_flight_tokens,
    )


def spec_of_rank(
    windows: Sequence[int | None],
    num_kv_heads: int,
    head_dim: int,
    *,
    latent_dim: int | None,
    tensor_parallel_size: int,
    block_size: int,
    dtype_bytes: int,
    in_flight_tokens: int,
    kind: type[KVCacheSpec] = KVCacheSpec,
) -> KVCacheSpec:
    """The cache of one rank whose layers have these `windows`; `kind` counts their blocks.

    Heads are split over tensor-parallel ranks until one is left. `latent_dim` is the length of
    MLA's compressed vector, which every rank repeats; None where there is none.
    """
    is_latent = latent_dim is not None
    return kind(
        block_size=block_size,
        num_kv_heads=1 if is_latent else max(1, num_kv_heads // tensor_parallel_size),
        head_dim=head_dim if latent_dim is None else latent_dim,
        num_layers=len(windows),
        dtype_bytes=dtype_bytes,
        groups=group_layers(windows),
        in_flight_tokens=in_flight_tokens,
        has_values=not is_latent,
    )


def cache_dtype_bytes(cache_dtype: str, model_dtype: str) -> int:
    """Bytes of one cached value; `auto` is the model's own format."""
    name = model_dtype if cache_dtype == "auto" else cache_dtype
    if name not in _DTYPE_BYTES:
        raise ConfigError(
            f"KV cache format {name!r} is not known; known: {', '.join(_DTYPE_BYTES)}."
        )
    return _DTYPE_BYTES[name]


def pipeline_stages(num_layers: int, pipeline_parallel_size: int) -> list[range]:
    """Layers of each stage: equal, what is left over goes to the stages before the last, as in
    get_pp_indices of vLLM's distributed/utils.py.
    """
    sizes = [num_layers // pipeline_parallel_size] * pipeline_parallel_size
    for extra in range(num_layers % pipeline_parallel_size):
        sizes[-2 - extra] += 1
    ends = [sum(sizes[: stage + 1]) for stage in range(pipeline_parallel_size)]
    return [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]


@dataclass(frozen=True, slots=True)
class KVCapacity:
    """The two numbers of the `KV cache size` log line, and the blocks behind them."""

    num_blocks: int
    num_tokens: int
    max_concurrency: float


def format_gib(num_bytes: float) -> str:
    """Bytes as GiB rounded to two decimals without padding, as vLLM prints (5 GiB -> `5.0`)."""
    return str(round(num_bytes / GIB, 2))


def requested_memory(total_bytes: int, utilization: float) -> int:
    """This instance's share of the device (vLLM's request_memory)."""
    return math.ceil(total_bytes * utilization)


def cpu_cap(spec: KVCacheSpec, max_model_len: int) -> int:
    """Most that a cache takes of a CPU's free RAM by itself: 4 GiB, or one request's if more."""
    return max(_CPU_CAP_BYTES, spec.bytes_for_one_request(max_model_len))


def cpu_share(free_bytes: int, utilization: float, spec: KVCacheSpec, max_model_len: int) -> int:
    """What a cache takes of the RAM that is free once the weights are there."""
    return min(int(free_bytes * utilization), cpu_cap(spec, max_model_len))


def kv_capacity(available_bytes: int, spec: KVCacheSpec, max_model_len: int) -> KVCapacity:
    """Blocks, tokens and concurrency that `available_bytes` give (no null block subtracted)."""
    return capacity_of_blocks(available_bytes // spec.bytes_per_block, spec, max_model_len)


def capacity_of_blocks(num_blocks: int, spec: KVCacheSpec, max_model_len: int) -> KVCapacity:
    """Tokens and concurrency of `num_blocks` blocks (vLLM's update_kv_cache_capacity)."""
    concurrency = num_blocks / spec.blocks_per_request(max_model_len)
    return KVCapacity(num_blocks, int(concurrency * max_model_len), concurrency)


def capacity_line(capacity: KVCapacity, max_model_len: int, device: str) -> str:
    """The log line of vLLM 0.30, e.g. `GPU KV cache size: 40,720 tokens, Maximum ...: 1.24x`."""
    return (
        f"{device} KV cache size: {capacity.num_tokens:,} tokens, Maximum concurrency for "
        f"{max_model_len:,} tokens per request: {capacity.max_concurrency:.2f}x"
    )


def longest_model_len(available_bytes: int, spec: KVCacheSpec, limit: int) -> int:
    """Longest request (tokens, at most `limit`) that fits; one block is the null block."""
    usable = available_bytes // spec.bytes_per_block - 1
    lengths = range(1, limit + 1)  # the blocks of a request grow with its length
    return bisect.bisect_right(lengths, usable, key=spec.blocks_per_request)


def require_one_request_fits(
    available_bytes: int,
    spec: KVCacheSpec,
    max_model_len: int,
    cache: CacheConfig | None = None,
) -> None:
    """Raise MemoryBudgetError unless one request of `max_model_len` tokens fits.

    The null block is reserved first, as in vLLM's get_kv_cache_configs. `cache` says which flag
    decided the size; without it, the share of the memory did.
    """
    usable = available_bytes - spec.bytes_per_block
    if usable <= 0:
        raise MemoryBudgetError(
            "No available memory for the cache blocks: "
            f"{format_gib(available_bytes)} GiB are left for the KV cache. "
            f"Try increasing {_lever(spec.bytes_per_block, spec, cache)}."
        )
    needed = spec.bytes_per_block * spec.blocks_per_request(max_model_len)
    if needed > usable:
        raise MemoryBudgetError(
            f"To serve at least one request with the model's max seq len ({max_model_len}), "
            f"({format_gib(needed)} GiB KV cache is needed, which is larger than the available KV "
            f"cache memory ({format_gib(usable)} GiB). Based on the available memory, the "
            f"estimated maximum model length is "
            f"{longest_model_len(available_bytes, spec, max_model_len)}. "
            f"Try increasing {_lever(needed, spec, cache)} or decreasing `max_model_len`."
        )


def _lever(needed: int, spec: KVCacheSpec, cache: CacheConfig | None) -> str:
    """The flag that decided the size of the cache, with the value that `needed` bytes take."""
    if cache is not None and cache.num_gpu_blocks_override is not None:
        return f"--num-gpu-blocks-override (to {needed // spec.bytes_per_block + 1} or more)"
    if cache is not None and cache.kv_cache_memory_bytes is not None:
        return f"--kv-cache-memory-bytes (to {needed + spec.bytes_per_block} or more)"
    return "`gpu_memory_utilization`"
