"""The RAM of an engine that runs on a CPU: what its KV cache may take, and what it all counts for.

Asked in EngineCore, whose turn it is, for all ranks together.
"""

from __future__ import annotations

from engine.config import EngineConfig
from engine.env import device_starts
from engine.machine.ram_shares import RamShares


def ram_for_cache(config: EngineConfig, weight_bytes: int) -> int:
    """Bytes for the KV cache of this process's engine, which holds its weights."""
    num_replicas = config.parallel.data_parallel_size
    left = RamShares(device_starts("cpu")).left(weight_bytes, num_replicas)
    return left if config.cache.kv_cache_memory_bytes is None else left // num_replicas


def ram_reserved(weight_bytes: int, cache_bytes: int) -> int:
    """What the engine may come to hold, its cache in full."""
    return RamShares(device_starts("cpu")).own_bytes(weight_bytes) + cache_bytes
