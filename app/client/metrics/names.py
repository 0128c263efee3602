"""Which exposed names mean what, per engine: each spelling since vLLM 0.6, SGLang, llama.cpp, TGI.

The first name that a server exposes counts. A trailing `_total` may be there or not.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from app.client.metrics.exposition import Exposition


@dataclass(frozen=True, slots=True)
class MetricNames:
    """The names of one engine, newest first; empty where the engine has no such metric.

    TOTALS and HISTOGRAMS list the fields that MetricsSample has under the same name.
    """

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
    cached_prompt_tokens: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()  # only where finished ones are not told by reason
    rejected: tuple[str, ...] = ()
    external_queries: tuple[str, ...] = ()
    external_hits: tuple[str, ...] = ()
    media_queries: tuple[str, ...] = ()
    media_hits: tuple[str, ...] = ()
    spec_drafts: tuple[str, ...] = ()
    spec_draft_tokens: tuple[str, ...] = ()
    spec_accepted_tokens: tuple[str, ...] = ()
    device_steps: tuple[str, ...] = ()
    graph_steps: tuple[str, ...] = ()
    graph_tokens: tuple[str, ...] = ()
    graph_padding_tokens: tuple[str, ...] = ()
    ttft: tuple[str, ...] = ()
    itl: tuple[str, ...] = ()
    tpot: tuple[str, ...] = ()
    e2e: tuple[str, ...] = ()
    queue: tuple[str, ...] = ()
    prefill_time: tuple[str, ...] = ()
    decode_time: tuple[str, ...] = ()
    inference_time: tuple[str, ...] = ()
    step_tokens: tuple[str, ...] = ()
    prompt_length: tuple[str, ...] = ()
    output_length: tuple[str, ...] = ()
    kv_used_tokens: tuple[str, ...] = ()
    max_running: tuple[str, ...] = ()
    max_model_len: tuple[str, ...] = ()
    reported_prompt_rate: tuple[str, ...] = ()  # tokens/s
    reported_generation_rate: tuple[str, ...] = ()


ENGINE_NAMES = {
    "stoker": "Stoker",
    "vllm": "vLLM",
    "sglang": "SGLang",
    "llama.cpp": "llama.cpp",
    "tgi": "TGI",
}
"""How people write the engines."""

CACHE_CONFIG = "vllm:cache_config_info"
FREE_BLOCKS = "stoker_kv_free_blocks"
CACHED_BLOCKS = "stoker_kv_cached_blocks"
WAITING_BY_REASON = "vllm:num_requests_waiting_by_reason"
SLEEP_STATE = "vllm:engine_sleep_state"
PROCESS_START = "process_start_time_seconds"

TOTALS = (
    *("running", "waiting", "preemptions", "prefix_queries", "prefix_hits"),
    *("prompt_tokens", "generation_tokens", "cached_prompt_tokens", "finished", "rejected"),
    *("external_queries", "external_hits", "media_queries", "media_hits"),
    *("spec_drafts", "spec_draft_tokens", "spec_accepted_tokens"),
    *("device_steps", "graph_steps", "graph_tokens", "graph_padding_tokens"),
    *("max_running", "reported_prompt_rate", "reported_generation_rate"),
)
"""Fields whose value is the sum over a name's series."""

HISTOGRAMS = (
    *("ttft", "itl", "tpot", "e2e", "queue", "prefill_time", "decode_time"),
    *("inference_time", "step_tokens", "prompt_length", "output_length"),
)
"""Fields that are histograms."""

_GAUGES = (
    *("running", "waiting", "kv_usage", "kv_blocks_total", "kv_capacity_tokens"),
    *("kv_cached_tokens", "kv_used_tokens", "block_size", "prefix_hit_rate"),
    *("max_running", "max_model_len", "reported_prompt_rate", "reported_generation_rate"),
)

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
    cached_prompt_tokens=("vllm:prompt_tokens_cached",),
    finished=("vllm:request_success",),
    rejected=("vllm:admission_rejections",),
    external_queries=("vllm:external_prefix_cache_queries",),
    external_hits=("vllm:external_prefix_cache_hits",),
    media_queries=("vllm:mm_cache_queries",),
    media_hits=("vllm:mm_cache_hits",),
    spec_drafts=("vllm:spec_decode_num_drafts",),
    spec_draft_tokens=("vllm:spec_decode_num_draft_tokens",),
    spec_accepted_tokens=("vllm:spec_decode_num_accepted_tokens",),
    device_steps=("stoker_device_steps",),
    graph_steps=("stoker_graph_steps",),
    graph_tokens=("stoker_graph_tokens",),
    graph_padding_tokens=("stoker_graph_padding_tokens",),
    ttft=("vllm:time_to_first_token_seconds",),
    itl=("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    tpot=("vllm:request_time_per_output_token_seconds",),
    e2e=("vllm:e2e_request_latency_seconds",),
    queue=("vllm:request_queue_time_seconds",),
    prefill_time=("vllm:request_prefill_time_seconds",),
    decode_time=("vllm:request_decode_time_seconds",),
    inference_time=("vllm:request_inference_time_seconds",),
    step_tokens=("vllm:iteration_tokens_total",),
    prompt_length=("vllm:request_prompt_tokens",),
    output_length=("vllm:request_generation_tokens",),
    reported_prompt_rate=("vllm:avg_prompt_throughput_toks_per_s",),
    reported_generation_rate=("vllm:avg_generation_throughput_toks_per_s",),
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
    failed=("sglang:num_aborted_requests",),
    ttft=("sglang:time_to_first_token_seconds",),
    itl=("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
    e2e=("sglang:e2e_request_latency_seconds",),
    queue=("sglang:queue_time_seconds",),
    prompt_length=("sglang:prompt_tokens_histogram",),
    output_length=("sglang:generation_tokens_histogram",),
    kv_used_tokens=("sglang:num_used_tokens", "sglang:kv_used_tokens"),
    max_running=("sglang:max_running_requests",),
    max_model_len=("sglang:context_len",),
    reported_generation_rate=("sglang:gen_throughput",),
)

_LLAMACPP = MetricNames(
    running=("llamacpp:requests_processing",),
    waiting=("llamacpp:requests_deferred",),
    kv_usage=("llamacpp:kv_cache_usage_ratio",),
    prompt_tokens=("llamacpp:prompt_tokens_total",),
    generation_tokens=("llamacpp:tokens_predicted_total",),
    cached_prompt_tokens=("llamacpp:prompt_tokens_cached_total",),
    kv_used_tokens=("llamacpp:kv_cache_tokens",),
    reported_prompt_rate=("llamacpp:prompt_tokens_seconds",),
    reported_generation_rate=("llamacpp:predicted_tokens_seconds",),
    spec_drafts=("llamacpp:spec_decode_num_drafts",),
    spec_draft_tokens=("llamacpp:spec_decode_num_draft_tokens",),
    spec_accepted_tokens=("llamacpp:spec_decode_num_accepted_tokens",),
)

_TGI = MetricNames(
    running=("tgi_batch_current_size",),
    waiting=("tgi_queue_size",),
    finished=("tgi_request_success",),
    failed=("tgi_request_failure",),
    e2e=("tgi_request_duration",),
    queue=("tgi_request_queue_duration",),
    inference_time=("tgi_request_inference_duration",),
    prompt_length=("tgi_request_input_length",),
    output_length=("tgi_request_generated_tokens",),
)

# Ours comes first: it exposes the vLLM names too.
_BY_PREFIX = (
    ("stoker_", "stoker", _VLLM),
    ("vllm:", "vllm", _VLLM),
    ("sglang:", "sglang", _SGLANG),
    ("llamacpp:", "llama.cpp", _LLAMACPP),
    ("tgi_", "tgi", _TGI),
)

ENGINES = tuple(names for _, _, names in _BY_PREFIX)
"""The names of every engine."""

GAUGE_NAMES = frozenset(
    name for names in ENGINES for field in _GAUGES for name in getattr(names, field)
)
"""Names of what goes up and down."""

MODEL_LABELS = ("model_name", "served_model_name", "model", "model_id", "name")
"""Labels that hold the model's name, today's first; SGLang's first versions wrote `name`."""

_FOREIGN_SPELLING = re.compile(r"(?:ray_)?(vllm|sglang|llamacpp)[:_](?=\w)")

OWN_READING = (
    *(CACHE_CONFIG, FREE_BLOCKS, CACHED_BLOCKS),
    *(WAITING_BY_REASON, SLEEP_STATE, PROCESS_START),
)
"""Names that are read in a way of their own."""


def is_of_an_engine(name: str) -> bool:
    """Whether a metric of this name is one of an engine's own."""
    return name.startswith(tuple(prefix for prefix, _, _ in _BY_PREFIX))


def spelled_as_engines_do(exposition: Exposition) -> Exposition:
    """The same scrape under the engines' own names.

    Collectors that allow no colon write `vllm_x`, and Ray puts its own word before the name.
    """
    if any(is_of_an_engine(name) for name in exposition.samples):
        return exposition
    renamed = {
        _FOREIGN_SPELLING.sub(r"\1:", name, count=1)
        if _FOREIGN_SPELLING.match(name)
        else name: found
        for name, found in exposition.samples.items()
    }
    return dataclasses.replace(exposition, samples=renamed)


def recognise(exposition: Exposition) -> tuple[str, MetricNames] | None:
    """The kind of engine behind a scrape and its names; None if no engine of these is there."""
    for prefix, kind, names in _BY_PREFIX:
        if exposition.has_prefix(prefix):
            return kind, names
    return None
