"""The shape of this model's KV cache on this device."""

from __future__ import annotations

import torch

from engine.config import EngineConfig
from engine.kv_sizing import KVCacheSpec


def torch_dtype(name: str) -> torch.dtype:
    """`bfloat16` -> torch.bfloat16; only names that EngineConfig allows."""
    return {
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
        "float32": torch.float32,
    }[name]


def kv_cache_spec(config: EngineConfig) -> KVCacheSpec:
    """Full attention in every layer, cached in the model's own number format."""
    model = config.model
    return KVCacheSpec(
        block_size=config.cache.block_size,
        num_kv_heads=model.num_key_value_heads,
        head_dim=model.head_dim,
        num_layers=model.num_hidden_layers,
        dtype_bytes=torch_dtype(config.device.dtype).itemsize,
    )
