"""Prints what LoRA adapters cost a step: `python -m tests.benchmarks.bench_lora [N] [RANK] [T]`.

N rounds (default 30) on the default model and native kernels; in each the plain model and two
adapters of that rank (default 16) on all linears take turns. Best of some steps, then medians and
the adapters' speed as a share of the plain model's. With T = 1 thread the CPU time counts, with
more (default: all) the wall time.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from engine.kernels.low_rank import Adapter, LowRank
from engine.kernels.step_batch import StepBatch
from engine.lora_adapters import AdapterModule, linear_shapes
from engine.model_config import ModelConfig
from engine.models.lora import decoder_adapter
from engine.rank_layout import WHOLE
from tests.benchmarks.bench_model_step import batch_of
from tests.benchmarks.bench_quantization import best_ms, load
from tests.default_model import default_model_folder

DECODE_SEQS = (1, 2, 8, 32)
PREFILL_TOKENS = (60, 512)
CACHE_BLOCKS = 1000


def random_adapter(config: ModelConfig, rank: int, seed: int) -> Adapter:
    """Of every linear of every layer."""
    torch.manual_seed(seed)

    def modules() -> Iterator[tuple[AdapterModule, LowRank]]:
        for layer in range(config.num_hidden_layers):
            for name, (outputs, inputs) in linear_shapes(config).items():
                where = f"model.layers.{layer}.{name}"
                a = torch.randn(rank, inputs).mul_(0.01).bfloat16()
                b = torch.randn(outputs, rank).mul_(0.01).bfloat16()
                module = AdapterModule(where, rank, inputs, outputs, 1.0, "", "")
                yield module, LowRank(a, b, torch.ones(rank))

    return decoder_adapter(modules(), config, WHOLE)


def cases() -> dict[str, tuple[StepBatch, int]]:
    """Each batch and how many steps of it are one measurement."""
    decodes = {f"decode B={n}": (batch_of(n, 1, 199), 5) for n in DECODE_SEQS}
    return decodes | {f"prefill {n}": (batch_of(1, n, 0), 1) for n in PREFILL_TOKENS}


def adapted(batch: StepBatch) -> StepBatch:
    """Every other sequence with the first adapter, the others with the second."""
    lengths = np.diff(batch.query_start_loc)
    return dataclasses.replace(batch, adapters=(np.arange(len(lengths)) % 2).repeat(lengths))


def main() -> None:
    """One line per case."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    rank = int(sys.argv[2]) if len(sys.argv) > 2 else 16
    num_threads = int(sys.argv[3]) if len(sys.argv) > 3 else None
    clock = time.thread_time if num_threads == 1 else time.perf_counter
    model: Any = load("none", num_threads)
    config = ModelConfig.from_folder(default_model_folder(), "default")
    for slot in (0, 1):
        model.load_adapter(slot, random_adapter(config, rank, slot))
    cache = model.create_kv_cache(CACHE_BLOCKS)
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(rounds):
        for case, (batch, repeats) in cases().items():
            for kind, step in (("plain", batch), ("adapted", adapted(batch))):
                milliseconds = best_ms(model, cache, step, repeats, clock)
                times[case, kind].append(milliseconds)
    for case in cases():
        plain, own = (statistics.median(times[case, kind]) for kind in ("plain", "adapted"))
        shares = [a / b for a, b in zip(times[case, "plain"], times[case, "adapted"], strict=True)]
        share = statistics.median(shares)
        print(f"{case:12}  plain {plain:7.2f} ms  adapted {own:7.2f} ms  {share:.2f} of the speed")


if __name__ == "__main__":
    main()
