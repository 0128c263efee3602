"""KV cache arithmetic shared by the engine and by planning: bytes -> blocks -> tokens ->
concurrency.

Rules from vLLM's v1/kv_cache_interface.py, v1/core/kv_cache_utils.py and v1/worker/utils.py.
Integers are bytes unless the name says otherwise. No torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.errors import MemoryBudgetError

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """Full attention, equal in every layer. `dtype_bytes` is the size of one cached value."""

    block_size: int
    num_kv_heads: int
    head_dim: int
    num_layers: int
    dtype_bytes: int

    @property
    def page_bytes(self) -> int:
        """One layer's share of one block: keys and values."""
        return self.block_size * self.num_kv_heads * 2 * self.head_dim * self.dtype_bytes

    @property
    def bytes_per_block(self) -> int:
        """All layers' pages of one block."""
        return self.page_bytes * self.num_layers

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that a request of `num_tokens` holds."""
        return -(-num_tokens // self.block_size)


@dataclass(frozen=True, slots=True)
class KVCapacity:
    """The two numbers of the `KV cache size` log line, and the blocks behind them."""

    num_blocks: int
    num_tokens: int
    max_concurrency: float


def format_gib(num_bytes: float) -> str:
    """Bytes as GiB rounded to two decimals without padding.

    As vLLM prints them (5 GiB -> `5.0`).
    """
    return str(round(num_bytes / GIB, 2))


def requested_memory(total_bytes: int, utilization: float) -> int:
    """This instance's share of the device (vLLM's request_memory)."""
    return math.ceil(total_bytes * utilization)


def kv_capacity(available_bytes: int, spec: KVCacheSpec, max_model_len: int) -> KVCapacity:
    """Blocks.

    Tokens and concurrency that `available_bytes` give (the null block not subtracted).
    """
    return capacity_of_blocks(available_bytes // spec.bytes_per_block, spec, max_model_len)


def capacity_of_blocks(num_blocks: int, spec: KVCacheSpec, max_model_len: int) -> KVCapacity:
    """Tokens and concurrency of `num_blocks` blocks (vLLM's update_kv_cache_capacity)."""
    concurrency = num_blocks / spec.blocks_for(max_model_len)
    return KVCapacity(num_blocks, int(concurrency * max_model_len), concurrency)


def capacity_line(capacity: KVCapacity, max_model_len: int, device: str) -> str:
    """The log line of vLLM 0.30, e.g. `GPU KV cache size: 40,720 tokens, Maximum ...: 1.24x`."""
    return (
        f"{device} KV cache size: {capacity.num_tokens:,} tokens, Maximum concurrency for "
        f"{max_model_len:,} tokens per request: {capacity.max_concurrency:.2f}x"
    )


def longest_model_len(available_bytes: int, spec: KVCacheSpec) -> int:
    """Longest request (tokens) that fits; one block is the null block."""
    return max(0, available_bytes // spec.bytes_per_block - 1) * spec.block_size


def require_one_request_fits(available_bytes: int, spec: KVCacheSpec, max_model_len: int) -> None:
    """Raise MemoryBudgetError unless one request of `max_model_len` tokens fits.

    The null block is reserved first, as in vLLM's get_kv_cache_configs.
    """
    usable = available_bytes - spec.bytes_per_block
    if usable <= 0:
        raise MemoryBudgetError(
            "No available memory for the cache blocks: "
            f"{format_gib(available_bytes)} GiB are left for the KV cache. "
            "Try increasing `gpu_memory_utilization`, or --kv-cache-memory-bytes where it is given."
        )
    needed = spec.bytes_per_block * spec.blocks_for(max_model_len)
    if needed > usable:
        raise MemoryBudgetError(
            f"To serve at least one request with the model's max seq len ({max_model_len}), "
            f"({format_gib(needed)} GiB KV cache is needed, which is larger than the available KV "
            f"cache memory ({format_gib(usable)} GiB). Based on the available memory, the "
            f"estimated maximum model length is {longest_model_len(available_bytes, spec)}. "
            "Try increasing `gpu_memory_utilization` or decreasing `max_model_len`; "
            f"with --kv-cache-memory-bytes, give {needed + spec.bytes_per_block} or more."
        )
