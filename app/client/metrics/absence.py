"""Why a value is missing from a sample, and what would export it. Text only; owns no name."""

from __future__ import annotations

_NO_LATENCY = "llama-server exports no latency histograms; `stoker bench` measures them"
_NO_TABLE = "llama-server does not export its KV cache; GET /slots tells each slot"
_STATS = "vLLM exports it unless it was started with --disable-log-stats"
_GRAPHS = "only Stoker's own engine counts CUDA graphs, and only on a GPU"
_SPECULATIVE = "only with speculative decoding: start with --speculative-config"
_LLAMACPP = {
    **dict.fromkeys(("ttft", "itl", "tpot", "e2e", "queue", "step_tokens"), _NO_LATENCY),
    **dict.fromkeys(("prefill_time", "decode_time", "inference_time"), _NO_LATENCY),
    **dict.fromkeys(("kv_usage", "kv_blocks_used", "kv_blocks_total"), _NO_TABLE),
    **dict.fromkeys(("kv_cached_share", "block_size", "kv_capacity_tokens"), _NO_TABLE),
    **dict.fromkeys(
        ("spec_drafts", "spec_draft_tokens", "spec_accepted_tokens"),
        "only with a draft model: start llama-server with -md FILE",
    ),
    "model": "llama-server puts no model name into its metrics; GET /v1/models tells it",
    "finished": "llama-server does not count finished requests",
    "failed": "llama-server does not count failed requests",
    "preemptions": "llama-server does not preempt: a request keeps its slot",
    "prefix_hit_rate": "llama-server counts cached tokens, not lookups",
}
_GRAPH_FIELDS = ("device_steps", "graph_steps", "graph_tokens", "graph_padding_tokens")
_VLLM = {
    **dict.fromkeys(_GRAPH_FIELDS, _GRAPHS),
    **dict.fromkeys(("spec_drafts", "spec_draft_tokens", "spec_accepted_tokens"), _SPECULATIVE),
    "kv_cached_share": "vLLM does not export how many free blocks still hold a prefix",
    "kv_capacity_tokens": "this vLLM is too old to export it; the start log has it",
    "max_concurrency": "this vLLM is too old to export it; the start log has it",
    "rejected": "vLLM counts refused requests from 0.32 on",
    "start_time_s": "vLLM exports it with one API server process only",
    "tpot": "vLLM exports it from 0.12 on",
}
_SGLANG = {
    "ttft": "SGLang exports it with --enable-metrics",
    "kv_blocks_used": "SGLang counts its KV cache in tokens, not in blocks",
}
_TGI = {
    **dict.fromkeys(("ttft", "itl"), "TGI exports no such histogram"),
    **dict.fromkeys(
        ("kv_usage", "kv_blocks_used", "kv_blocks_total"), "TGI does not export its KV cache"
    ),
}
_BY_ENGINE = {"vllm": _VLLM, "llama.cpp": _LLAMACPP, "sglang": _SGLANG, "tgi": _TGI}


def why_absent(field: str, engine: str | None) -> str:
    """The reason why `field` of a MetricsSample is None, in one line."""
    found = _BY_ENGINE.get(engine or "", {}).get(field)
    if found:
        return found
    return _STATS if engine == "vllm" else "this server does not expose it"


def metrics_hint(status: int | None) -> str | None:
    """What to start a server with that answers /metrics with this error status."""
    if status == 501:
        return "start llama-server with --metrics"
    if status == 503:
        return "the server is there and serves nothing yet: ask again in a moment"
    if status == 404:
        return "SGLang needs --enable-metrics; other servers may have no /metrics"
    return None
