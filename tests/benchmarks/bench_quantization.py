"""Prints ms per step in bf16, int8, int4: `python -m tests.benchmarks.bench_quantization [N] [T]`.

N rounds (default 20); in each, every format runs every case, one behind the other, so that whatever
else runs on the machine slows all of them down. Medians and the ratios to bf16. With T = 1 thread
the CPU time counts, which a busy machine changes little; with more (default: all) the wall time.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from engine.kernels.kernel_set import KVCache, ModelStep
from engine.kernels.step_batch import StepBatch
from engine.worker.uniproc_executor import UniProcExecutor
from engine.worker.worker import Worker
from tests.benchmarks.bench_model_step import batch_of, run
from tests.default_model import default_model_folder
from tests.worker.driver import engine_config

FORMATS = ("none", "int8", "int4")
DECODE_SEQS = (1, 8, 32)
PREFILL_TOKENS = (60, 512)


def load(quantization: str, num_threads: int | None) -> ModelStep:
    """The default model on the native set."""
    config = engine_config(
        default_model_folder(),
        dtype="bfloat16",
        kernels="native",
        quantization=quantization,
    )
    device = replace(config.device, num_threads=num_threads)
    executor = UniProcExecutor(replace(config, device=device))
    executor.load_model()
    worker = executor._worker
    assert isinstance(worker, Worker)
    return worker._model


def cases() -> dict[str, tuple[StepBatch, int]]:
    """Each batch and how many steps of it are one measurement."""
    decodes = {f"decode B={n}": (batch_of(n, 1, 199), 5) for n in DECODE_SEQS}
    return decodes | {f"prefill {n}": (batch_of(1, n, 0), 1) for n in PREFILL_TOKENS}


def best_ms(
    model: ModelStep, cache: KVCache, batch: StepBatch, repeats: int, clock: Callable[[], float]
) -> float:
    """The fastest of some steps: the machine may belong to others for part of the time."""
    times = []
    for _ in range(repeats):
        start = clock()
        run(model, cache, batch)
        times.append((clock() - start) * 1000)
    return min(times)


def main() -> None:
    """One line per case."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    num_threads = int(sys.argv[2]) if len(sys.argv) > 2 else None
    clock = time.thread_time if num_threads == 1 else time.perf_counter
    models = {name: load(name, num_threads) for name in FORMATS}
    caches = {name: model.create_kv_cache(1000) for name, model in models.items()}
    for name, model in models.items():
        run(model, caches[name], batch_of(max(DECODE_SEQS), 200, 0))
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(rounds):
        for case, (batch, repeats) in cases().items():
            for name, model in models.items():
                times[case, name].append(best_ms(model, caches[name], batch, repeats, clock))
    for case in cases():
        median = {name: statistics.median(times[case, name]) for name in FORMATS}
        shown = "  ".join(
            f"{n} {median[n]:7.2f} ms {median['none'] / median[n]:5.2f}x" for n in FORMATS
        )
        fastest = "  ".join(f"{n} {min(times[case, n]):7.2f}" for n in FORMATS)
        print(f"{case:12s} {shown}   fastest: {fastest}")
    for name, model in models.items():
        print(f"{name}: {model.weight_bytes / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
