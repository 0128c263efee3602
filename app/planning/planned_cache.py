"""The KV cache that a plan counts with: vLLM's, our engine's and llama.cpp's differ a little."""

from __future__ import annotations

from dataclasses import dataclass

from app.errors import UsageError
from app.launch.engines import LLAMA_CPP, VLLM
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
    """vLLM's planning of sliding windows: one that reaches beyond the request is cut at the
    request, before the block at its edge is added.
    """

    def blocks_of_group(self, group: KVCacheGroup, num_tokens: int) -> int:
        """Blocks that one request of `num_tokens` can need in this group."""
        if group.sliding_window is None:
            return self.blocks_for(num_tokens)
        held = min(group.sliding_window - 1 + self.in_flight_tokens, num_tokens)
        return self.blocks_for(held) + 1


def cache_spec(
    shape: ModelShape, request: PlanRequest, max_num_batched_tokens: int, layers: range
) -> KVCacheSpec:
    """The cache of one rank that holds `layers`."""
    kind = WindowedCacheSpec if request.engine == VLLM else KVCacheSpec
    latent, windows = shape.latent, shape.layer_windows[layers.start : layers.stop]
    # With async scheduling, vLLM's default on GPUs, one step more than stages is in flight.
    batches = request.pipeline_parallel_size + 1 if request.engine == VLLM else 1
    step = LLAMA_CPP_STEP if request.engine == LLAMA_CPP else max_num_batched_tokens
    return spec_of_rank(
        windows,
        shape.num_kv_heads,
        shape.head_dim,
        latent_dim=latent.kv_lora_rank + latent.rope_dim if latent else None,
        tensor_parallel_size=request.tensor_parallel_size,
        block_size=request.block_size or (1 if request.engine == LLAMA_CPP else DEFAULT_BLOCK_SIZE),
        dtype_bytes=_cache_value_bytes(shape, request),
        in_flight_tokens=batches * step,
        kind=kind,
    )


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
