"""The KV cache that a plan counts with: vLLM's, our engine's and llama.cpp's differ a little."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from app.errors import UsageError
from app.launch.engines import LLAMA_CPP, STOKER, VLLM
from app.planning.layer_caches import LayerCache
from app.planning.mixed_cache import (
    CacheRules,
    blocks_cut,
    bytes_of_state,
    is_mixed,
    mixed_spec,
)
from app.planning.model_shapes import ModelShape
from app.planning.plan_request import PlanRequest
from engine.args import gpu_dtype
from engine.config import DEFAULT_BLOCK_SIZE
from engine.errors import ConfigError
from engine.kv_sizing import (
    KVCacheGroup,
    KVCacheSpec,
    cache_dtype_bytes,
    spec_of_rank,
)

LLAMA_CPP_STEP = 512  # tokens of one step (--ubatch-size)


@dataclass(frozen=True, slots=True)
class WindowedCacheSpec(KVCacheSpec):
    """vLLM's planning of sliding windows."""

    def blocks_of_group(self, group: KVCacheGroup, num_tokens: int) -> int:
        """Blocks that one request of `num_tokens` can need in this group."""
        return blocks_cut(num_tokens, group.sliding_window, self.in_flight_tokens, self.block_size)


def cache_spec(
    shape: ModelShape, request: PlanRequest, max_num_batched_tokens: int, layers: range
) -> KVCacheSpec:
    """The cache of one rank that holds `layers`."""
    kind = WindowedCacheSpec if request.engine == VLLM else KVCacheSpec
    caches = shape.layer_caches[layers.start : layers.stop]
    # With async scheduling, vLLM's default on GPUs, one step more than stages is in flight.
    batches = request.pipeline_parallel_size + 1 if request.engine == VLLM else 1
    step = LLAMA_CPP_STEP if request.engine == LLAMA_CPP else max_num_batched_tokens
    rules = CacheRules(
        block_size=request.block_size or (1 if request.engine == LLAMA_CPP else DEFAULT_BLOCK_SIZE),
        dtype_bytes=_cache_value_bytes(shape, request),
        state_bytes=_state_value_bytes(shape, request),
        tensor_parallel_size=request.tensor_parallel_size,
        in_flight_tokens=batches * step,
    )
    if request.engine == STOKER and any(cache.values_per_token for cache in caches):
        caches = _as_widest(caches, shape)
    if is_mixed(caches):
        return mixed_spec(_pooled(caches, request), rules)
    return spec_of_rank(
        [cache.window for cache in caches],
        caches[0].num_kv_heads,
        caches[0].key_dim,
        latent_dim=caches[0].key_dim if caches[0].is_latent else None,
        tensor_parallel_size=rules.tensor_parallel_size,
        block_size=rules.block_size,
        dtype_bytes=rules.dtype_bytes,
        in_flight_tokens=rules.in_flight_tokens,
        kind=kind,
    )


def _as_widest(caches: tuple[LayerCache, ...], shape: ModelShape) -> tuple[LayerCache, ...]:
    """Our engine's pages have room for the widest layer, and vectors of MLA are unfolded."""
    own = [cache for cache in caches if cache.values_per_token]
    heads = max(shape.num_heads if cache.is_latent else cache.num_kv_heads for cache in own)
    dim = max(max(cache.key_dim, cache.value_dim) for cache in own)
    if (latent := shape.latent) is not None:
        dim = max(latent.nope_dim + latent.rope_dim, latent.value_dim)
    return tuple(LayerCache(heads, dim, dim, cache.window, state=cache.state) for cache in own)


def states_apart(shape: ModelShape, request: PlanRequest, max_num_seqs: int, layers: range) -> int:
    """Bytes of states that lie beside the blocks; vLLM keeps them in blocks.

    llama.cpp keeps one for each of its slots, of which `llama-server` is planned with one.
    """
    caches = shape.layer_caches[layers.start : layers.stop]
    if request.engine == VLLM or _is_all_states(caches):
        return 0
    slots = 1 if request.engine == LLAMA_CPP else max_num_seqs
    size, ranks = _state_value_bytes(shape, request), request.tensor_parallel_size
    return slots * sum(bytes_of_state(c.state, size, ranks) for c in caches if c.state is not None)


def _pooled(caches: tuple[LayerCache, ...], request: PlanRequest) -> tuple[LayerCache, ...]:
    """Layers whose memory is in blocks: vLLM keeps states there too, our engine beside them."""
    if request.engine == VLLM or _is_all_states(caches):
        return caches
    return tuple(dataclasses.replace(cache, state=None) for cache in caches)


def _is_all_states(caches: tuple[LayerCache, ...]) -> bool:
    return all(cache.values_per_token == 0 for cache in caches)


def _state_value_bytes(shape: ModelShape, request: PlanRequest) -> int:
    if request.engine == LLAMA_CPP:
        return 4
    return cache_dtype_bytes("auto", run_dtype(shape, request))


def run_dtype(shape: ModelShape, request: PlanRequest) -> str:
    """The format that the model runs in."""
    return request.cpu_dtype if request.gpu is None else gpu_dtype(shape.dtype)


def _cache_value_bytes(shape: ModelShape, request: PlanRequest) -> int:
    asked = request.kv_cache_dtype
    if asked == "auto" and shape.declared_kv_dtype is not None:
        asked = shape.declared_kv_dtype
    try:
        return cache_dtype_bytes(asked, run_dtype(shape, request))
    except ConfigError as error:
        raise UsageError(str(error).rstrip(".")) from error
