"""Microseconds per step of everything behind the logits, per kind of request.

Run as `python -m tests.benchmarks.bench_sampler`; contexts of 1,000 tokens, vocabulary 49,152.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch

from engine.sampling_params import SamplingParams
from engine.sched.scheduler_output import NewRequestData
from engine.worker.input_batch import InputBatch
from engine.worker.logprobs import token_logprobs
from engine.worker.sampler import SamplingBatch, sample

VOCABULARY, CONTEXT, ROUNDS = 49_152, 1000, 60
KINDS = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature": SamplingParams(temperature=0.8),
    "top_p": SamplingParams(temperature=0.8, top_p=0.95),
    "penalties": SamplingParams(temperature=0.0, repetition_penalty=1.2, frequency_penalty=0.3),
    "bias": SamplingParams(temperature=0.0, logit_bias=tuple((i, 1.0) for i in range(50))),
    "allowed": SamplingParams(temperature=0.0, allowed_token_ids=tuple(range(100, 600))),
    "bad_words": SamplingParams(
        temperature=0.0, bad_words_token_ids=tuple((i, i + 1, i + 2) for i in range(100))
    ),
    "logprobs": SamplingParams(temperature=0.0, logprobs=5),
}


def measure(params: list[SamplingParams]) -> float:
    rng = np.random.default_rng(0)
    batch = InputBatch(len(params), CONTEXT + ROUNDS + 10, 16, seed=0)
    for number, entry in enumerate(params):
        tokens = rng.integers(0, VOCABULARY, CONTEXT).tolist()
        batch.add(NewRequestData(str(number), tokens, CONTEXT // 2, [], 0, entry))
    rows = batch.rows([str(number) for number in range(len(params))])
    logits = torch.randn(len(params), VOCABULARY) * 3
    times = []
    for _ in range(ROUNDS):
        step = logits.clone()
        start = time.perf_counter()
        asking = np.flatnonzero(batch.num_logprobs[rows] >= 0)
        raw = step[asking] if len(asking) else None
        tokens = sample(step, SamplingBatch.of(batch, rows))
        batch.append_tokens(rows, tokens)
        if raw is not None:
            token_logprobs(raw, tokens[asking], batch.num_logprobs[rows][asking])
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def main() -> None:
    print(f"{'':<24}" + "".join(f"{f'B={size}':>10}" for size in (1, 8, 32)))
    for name, params in KINDS.items():
        figures = [measure([params] * size) for size in (1, 8, 32)]
        print(f"{name:<24}" + "".join(f"{value:>10.0f}" for value in figures))
    for name in ("penalties", "bad_words", "logprobs"):
        figures = [measure([KINDS[name], *[KINDS["greedy"]] * (size - 1)]) for size in (8, 32)]
        print(f"{f'1 {name}, rest greedy':<24}{'':>10}" + "".join(f"{x:>10.0f}" for x in figures))


if __name__ == "__main__":
    main()
