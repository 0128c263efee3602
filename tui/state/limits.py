"""What keeps a server from doing more, as far as its metrics tell: evidence, and the flag for it.

Our own engine names its limit itself (tui/state/engine_state.py); here it is inferred, and said
to be.
"""

from __future__ import annotations

from app.client import formatting
from app.client.metrics.sample import MetricsSample
from tui.state.history import Snapshot

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


COMPUTE_FLAGS = {
    "stoker": "--num-threads, --quantization",
    "vllm": "--tensor-parallel-size, --quantization",
    "sglang": "--tp-size, --quantization",
    "llama.cpp": "--threads, --n-gpu-layers",
}


def limit_from_metrics(snapshot: Snapshot, core_load: float | None = None) -> tuple[str, str]:
    """The limit with its evidence, and the flags that move it ("-" without any).

    `core_load` is the share of this machine's cores that are busy, where the server runs here.
    """
    sample = snapshot.sample
    running, waiting = sample.running, sample.waiting
    if running is None or waiting is None:
        return "n/a: the server does not tell who runs and who waits", "-"
    if not waiting:
        return _compute_limit(sample, running, core_load)
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
        return f"KV memory: {preempted}, {use}, {queue}", kv_flag(sample)
    fullest = sample.fullest
    if fullest is not None and fullest.waiting and (fullest.kv_usage or 0.0) >= _FULL:
        told = f"{formatting.percent(fullest.kv_usage)} used, {formatting.count(fullest.waiting)}"
        return f"KV memory of {fullest.name}, it seems: {told} wait there; {queue}", kv_flag(sample)
    if sample.kv_usage >= _FULL:
        return f"KV memory, it seems: {use}, {queue}", kv_flag(sample)
    return _batch_limit(snapshot, f"{queue}, {use}")


def _batch_limit(snapshot: Snapshot, evidence: str) -> tuple[str, str]:
    flags = _BATCH_FLAGS.get(snapshot.sample.engine, "-")
    seats = {p.sample.running for p in snapshot.points if p.sample.waiting}
    if len(seats) == 1 and len(snapshot.points) > 2:
        return f"max_num_seqs, it seems: never more or fewer run; {evidence}", flags
    what = "max_num_seqs or the token budget"
    if snapshot.sample.engine == "stoker":
        what = f"prompts that take turns, {what}"
    return f"{what}: {evidence}", flags


def _compute_limit(
    sample: MetricsSample, running: float, core_load: float | None
) -> tuple[str, str]:
    """Nothing waits: who runs is only as fast as a step."""
    if not running:
        return "none: nothing runs and nothing waits", "-"
    evidence = f"{formatting.count(running)} run, none waits; a step's time is the limit"
    if core_load is not None:
        evidence += f"; cores {formatting.percent(core_load)} busy"
    return f"compute: {evidence}", COMPUTE_FLAGS.get(sample.engine, "-")


def kv_flag(sample: MetricsSample | None) -> str:
    """The flags that make the KV cache larger; a fixed number of blocks overrules all others."""
    if sample is not None and sample.has_blocks_override:
        return "--num-gpu-blocks-override"
    return _KV_FLAGS.get(sample.engine if sample else "stoker", "-")
