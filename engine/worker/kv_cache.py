"""The shape of this model's KV cache on this device."""

from __future__ import annotations

import torch

from engine.config import EngineConfig
from engine.kv_sizing import KVCacheSpec, kv_cache_spec


def torch_dtype(name: str) -> torch.dtype:
    """`bfloat16` -> torch.bfloat16; only names that EngineConfig allows."""
    return {
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
        "float32": torch.float32,
    }[name]


def cache_spec(config: EngineConfig) -> KVCacheSpec:
    """Cached in the number format that the model runs in, unless another one is asked for."""
    cache_dtype = config.cache.cache_dtype
    return kv_cache_spec(
        config.model,
        block_size=config.cache.block_size,
        cache_dtype=config.device.dtype if cache_dtype == "auto" else cache_dtype,
        in_flight_tokens=config.scheduler.max_num_batched_tokens,
    )
