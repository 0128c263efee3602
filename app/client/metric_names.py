"""Which exposed names mean what, per engine: each spelling since vLLM 0.6, SGLang, llama.cpp, TGI.

The first name that a server exposes counts. A trailing `_total` may be there or not.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.client.exposition import Exposition


@dataclass(frozen=True, slots=True)
class MetricNames:
    """The names of one engine, newest first; empty where the engine has no such metric."""

    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    kv_usage: tuple[str, ...] = ()
    kv_blocks_total: tuple[str, ...] = ()
    kv_capacity_tokens: tuple[str, ...] = ()
    kv_cached_tokens: tuple[str, ...] = ()
    block_size: tuple[str, ...] = ()
    preemptions: tuple[str, ...] = ()
    prefix_queries: tuple[str, ...] = ()
    prefix_hits: tuple[str, ...] = ()
    prefix_hit_rate: tuple[str, ...] = ()
    prompt_tokens: tuple[str, ...] = ()
    generation_tokens: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    ttft: tuple[str, ...] = ()
    itl: tuple[str, ...] = ()
    e2e: tuple[str, ...] = ()


CACHE_CONFIG = "vllm:cache_config_info"
FREE_BLOCKS = "stoker_kv_free_blocks"
CACHED_BLOCKS = "stoker_kv_cached_blocks"

_VLLM = MetricNames(
    running=("vllm:num_requests_running",),
    waiting=("vllm:num_requests_waiting",),
    kv_usage=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    preemptions=("vllm:num_preemptions",),
    prefix_queries=("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"),
    prefix_hits=("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"),
    prefix_hit_rate=("vllm:gpu_prefix_cache_hit_rate",),
    prompt_tokens=("vllm:prompt_tokens",),
    generation_tokens=("vllm:generation_tokens",),
    finished=("vllm:request_success",),
    ttft=("vllm:time_to_first_token_seconds",),
    itl=("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    e2e=("vllm:e2e_request_latency_seconds",),
)

_SGLANG = MetricNames(
    running=("sglang:num_running_reqs",),
    waiting=("sglang:num_queue_reqs",),
    kv_usage=("sglang:token_usage",),
    kv_blocks_total=("sglang:num_pages",),
    kv_capacity_tokens=("sglang:max_total_num_tokens",),
    kv_cached_tokens=("sglang:kv_evictable_tokens",),
    block_size=("sglang:page_size",),
    preemptions=("sglang:num_retracted_requests",),
    prefix_hit_rate=("sglang:cache_hit_rate",),
    prompt_tokens=("sglang:prompt_tokens",),
    generation_tokens=("sglang:generation_tokens",),
    finished=("sglang:num_requests",),
    ttft=("sglang:time_to_first_token_seconds",),
    itl=("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
    e2e=("sglang:e2e_request_latency_seconds",),
)

_LLAMACPP = MetricNames(
    running=("llamacpp:requests_processing",),
    waiting=("llamacpp:requests_deferred",),
    kv_usage=("llamacpp:kv_cache_usage_ratio",),
    prompt_tokens=("llamacpp:prompt_tokens_total",),
    generation_tokens=("llamacpp:tokens_predicted_total",),
)

_TGI = MetricNames(
    running=("tgi_batch_current_size",),
    waiting=("tgi_queue_size",),
    finished=("tgi_request_success",),
    e2e=("tgi_request_duration",),
)

# Ours comes first: it exposes the vLLM names too.
_BY_PREFIX = (
    ("stoker_", "stoker", _VLLM),
    ("vllm:", "vllm", _VLLM),
    ("sglang:", "sglang", _SGLANG),
    ("llamacpp:", "llama.cpp", _LLAMACPP),
    ("tgi_", "tgi", _TGI),
)


def recognise(exposition: Exposition) -> tuple[str, MetricNames] | None:
    """The kind of engine behind a scrape and its names; None if no engine of these is there."""
    for prefix, kind, names in _BY_PREFIX:
        if exposition.has_prefix(prefix):
            return kind, names
    return None
