"""What keeps a server from doing more, as far as its metrics tell: evidence, and the flag for it.

Our own engine names its limit itself (tui/engine_state.py); here it is inferred, and said to be.
"""

from __future__ import annotations

from app.client import formatting
from tui.history import Snapshot

_FULL = 0.95
_KV_FLAGS = {
    "stoker": "--gpu-memory-utilization, --kv-cache-memory-bytes",
    "vllm": "--gpu-memory-utilization, --kv-cache-memory-bytes",
    "sglang": "--mem-fraction-static",
}
_BATCH_FLAGS = {
    "stoker": "--max-num-seqs, --max-num-batched-tokens",
    "vllm": "--max-num-seqs, --max-num-batched-tokens",
    "sglang": "--max-running-requests, --chunked-prefill-size",
    "llama.cpp": "--parallel",
    "tgi": "--max-batch-total-tokens, --max-batch-prefill-tokens",
}


def limit_from_metrics(snapshot: Snapshot) -> tuple[str, str]:
    """The limit with its evidence, and the flags that move it ("-" without any)."""
    sample = snapshot.sample
    running, waiting = sample.running, sample.waiting
    if running is None or waiting is None:
        return "n/a: the server does not tell who runs and who waits", "-"
    if not waiting:
        return "none: nothing waits", "-"
    queue = f"{formatting.count(running)} run, {formatting.count(waiting)} wait"
    if sample.waiting_deferred and sample.waiting_deferred >= waiting:
        return f"none of the engine's: {queue} for LoRA, a KV transfer or a grammar", "-"
    if sample.engine == "llama.cpp":
        return f"slots: {queue}", _BATCH_FLAGS["llama.cpp"]
    if sample.kv_usage is None:
        return f"not known: {queue}, and the KV cache's use is not exported", "-"
    use = f"KV cache {formatting.percent(sample.kv_usage)} used"
    if snapshot.recent_preemptions:
        stretch = formatting.window(snapshot.window_s)
        preempted = f"{formatting.count(snapshot.recent_preemptions)} preempted in {stretch}"
        return f"KV memory: {preempted}, {use}, {queue}", _kv_flag(sample.engine)
    if sample.kv_usage >= _FULL:
        return f"KV memory, it seems: {use}, {queue}", _kv_flag(sample.engine)
    return _batch_limit(snapshot, f"{queue}, {use}")


def _batch_limit(snapshot: Snapshot, evidence: str) -> tuple[str, str]:
    flags = _BATCH_FLAGS.get(snapshot.sample.engine, "-")
    seats = {p.sample.running for p in snapshot.points if p.sample.waiting}
    if len(seats) == 1 and len(snapshot.points) > 2:
        return f"max_num_seqs, it seems: never more or fewer run; {evidence}", flags
    return f"max_num_seqs or the token budget: {evidence}", flags


def _kv_flag(engine: str) -> str:
    return _KV_FLAGS.get(engine, "-")
