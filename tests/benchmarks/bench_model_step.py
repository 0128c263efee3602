"""Prints ms per model step: `python -m tests.benchmarks.bench_model_step [SET] [DTYPE] [CACHE]`.

SET is native, reference or auto, DTYPE bfloat16 or float32, CACHE auto or fp8. Decode of 1, 8, 32
sequences at context 200, of 8 at 4000 (greedy token included), and prefill of one prompt.
Medians: look at the machine's load.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

import numpy as np
import torch

from engine.kernels.kernel_set import KVCache, ModelStep
from engine.kernels.step_batch import StepBatch
from engine.worker.uniproc_executor import UniProcExecutor
from engine.worker.worker import Worker
from tests.default_model import default_model_folder
from tests.worker.driver import engine_config

BLOCK = 16


def batch_of(num_seqs: int, num_new: int, num_computed: int) -> StepBatch:
    """`num_seqs` equal sequences with blocks of their own."""
    width = -(-(num_computed + num_new) // BLOCK)
    table = 1 + np.arange(num_seqs * width).reshape(num_seqs, width)
    positions = np.tile(np.arange(num_computed, num_computed + num_new), num_seqs)
    owner = np.repeat(np.arange(num_seqs), num_new)
    ends = np.arange(num_seqs + 1) * num_new
    return StepBatch(
        token_ids=np.random.default_rng(0).integers(1000, 20000, num_seqs * num_new),
        positions=positions,
        slot_mapping=(table[owner, positions // BLOCK] * BLOCK + positions % BLOCK)[None],
        query_start_loc=ends,
        num_computed=np.full(num_seqs, num_computed),
        block_table=table[None],
        logits_rows=ends[1:] - 1,
    )


def median_ms(model: ModelStep, cache: KVCache, batch: StepBatch, repeats: int) -> float:
    """Median wall time of a greedy step after two warm-up calls."""
    times = []
    for number in range(repeats + 2):
        start = time.perf_counter()
        run(model, cache, batch)
        if number >= 2:
            times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times)


def run(model: ModelStep, cache: KVCache, batch: StepBatch) -> torch.Tensor:
    """One greedy step."""
    return model.forward(batch, cache).argmax(-1)


def main() -> None:
    """Load the default model and print one line per case."""
    backend, dtype, cache_dtype = (
        *sys.argv[1:],
        *("auto", "bfloat16", "auto")[len(sys.argv) - 1 :],
    )
    executor = UniProcExecutor(
        engine_config(
            default_model_folder(),
            dtype=dtype,
            max_model_len=4096,
            kernels=backend,
            cache_dtype=cache_dtype,
        )
    )
    executor.load_model()
    worker = executor._worker
    assert isinstance(worker, Worker)
    model = worker._model
    cache = model.create_kv_cache(2001)
    for page in cache:
        page.view(torch.uint8).fill_(0x3A)  # memory of its own, and finite numbers in any format
    load = os.getloadavg()[0]
    print(f"{type(model).__name__}, {dtype}, cache {cache_dtype}, load before the start {load:.1f}")
    for num_seqs, context in ((1, 200), (8, 200), (32, 200), (8, 4000)):
        batch = batch_of(num_seqs, 1, context - 1)
        time_ms = median_ms(model, cache, batch, 60)
        print(f"decode  B={num_seqs:<2d} at {context:<5d} {time_ms:8.1f} ms")
    for tokens in (60, 512, 2048):
        batch = batch_of(1, tokens, 0)
        print(f"prefill {tokens:<10d} {median_ms(model, cache, batch, 5):8.1f} ms")


if __name__ == "__main__":
    main()
