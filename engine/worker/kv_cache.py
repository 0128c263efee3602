"""The shape of this model's KV cache on this device."""

from __future__ import annotations

import dataclasses

import torch

from engine.config import EngineConfig
from engine.kv_sizing import KVCacheGroup, KVCacheSpec, kv_cache_spec
from engine.rank_layout import WHOLE, RankPlace, layers_of


def torch_dtype(name: str) -> torch.dtype:
    """`bfloat16` -> torch.bfloat16; only names that EngineConfig allows."""
    return {
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
        "float32": torch.float32,
    }[name]


def cache_spec(config: EngineConfig, place: RankPlace = WHOLE) -> KVCacheSpec:
    """Of one rank; cached in the number format that the model runs in, unless another is asked for.

    Every pipeline stage has all groups, since block tables are the same for all ranks; a group may
    have no layer there.
    """
    cache_dtype = config.cache.cache_dtype
    spec = kv_cache_spec(
        config.model,
        block_size=config.cache.block_size,
        cache_dtype=config.device.dtype if cache_dtype == "auto" else cache_dtype,
        in_flight_tokens=config.scheduler.max_num_batched_tokens,
        tensor_parallel_size=place.tensor_size,
    )
    if place.num_stages == 1:
        return spec
    layers = layers_of(config.model, place)
    groups = tuple(_in_stage(group, layers) for group in spec.groups)
    return dataclasses.replace(spec, num_layers=len(layers), groups=groups)


def _in_stage(group: KVCacheGroup, layers: range) -> KVCacheGroup:
    """Its layers of a stage, numbered from the stage's first."""
    own = tuple(layer - layers.start for layer in group.layers if layer in layers)
    return KVCacheGroup(own, group.sliding_window)
