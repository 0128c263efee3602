"""The sampler's distribution, its filters against a naive twin, its independence of the batch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from engine.worker.sampler import SamplingBatch, filter_logits, sample, uniform_numbers


def settings(rows: int, **changes: Any) -> SamplingBatch:
    """Plain random sampling at temperature 1 with fixed uniforms, unless changed."""
    values: dict[str, Any] = {
        "temperature": np.ones(rows, dtype=np.float32),
        "top_k": np.zeros(rows, dtype=np.int64),
        "top_p": np.ones(rows, dtype=np.float32),
        "min_p": np.zeros(rows, dtype=np.float32),
        "uniforms": uniform_numbers(np.arange(rows, dtype=np.uint64), np.zeros(rows, np.int64)),
        **changes,
    }
    return SamplingBatch(**values)


def naive_kept(row: list[float], top_k: int, top_p: float, min_p: float) -> set[int]:
    """min-p, then top-k, then top-p; ties with the last kept value stay."""
    best = max(row)
    kept = [i for i, x in enumerate(row) if min_p == 0 or math.exp(x - best) >= min_p]
    if top_k:
        limit = sorted((row[i] for i in kept), reverse=True)[: min(top_k, len(kept))][-1]
        kept = [i for i in kept if row[i] >= limit]
    if top_p < 1:
        total = sum(math.exp(row[i]) for i in kept)
        mass, limit = 0.0, -math.inf
        for x in sorted((row[i] for i in kept), reverse=True):
            mass, limit = mass + math.exp(x) / total, x
            if mass >= top_p:
                break
        kept = [i for i in kept if row[i] >= limit]
    return set(kept)


@pytest.mark.parametrize("vocabulary", [40, 1000])
def test_filters_equal_the_naive_twin(vocabulary: int) -> None:
    rng = np.random.default_rng(5)
    cases = [(k, p, m) for k in (0, 1, 7, 2000) for p in (1.0, 0.95, 0.3) for m in (0.0, 0.05)]
    logits = torch.from_numpy(rng.normal(0, 1.5, (len(cases), vocabulary)).astype(np.float32))
    filtered = logits.clone()
    filter_logits(
        filtered,
        np.array([k for k, _, _ in cases]),
        np.array([p for _, p, _ in cases], dtype=np.float32),
        np.array([m for _, _, m in cases], dtype=np.float32),
    )
    for row, kept, case in zip(logits.tolist(), filtered.isfinite(), cases, strict=True):
        assert set(kept.nonzero().flatten().tolist()) == naive_kept(row, *case), case


def test_flat_rows_need_the_full_sort() -> None:
    """256 candidates hold 2 % of a flat row of 12,800: top-p must look at all of it."""
    logits = torch.arange(12_800, dtype=torch.float32).mul_(1e-6).repeat(2, 1)
    filter_logits(
        logits,
        np.zeros(2, dtype=np.int64),
        np.array([0.5, 1.0], dtype=np.float32),
        np.zeros(2, dtype=np.float32),
    )
    kept = logits.isfinite().sum(-1).tolist()
    assert 6300 < kept[0] < 6500
    assert kept[1] == 12_800


def test_ties_at_the_limit_are_kept() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 0.0]])
    filter_logits(logits, np.array([2]), np.ones(1, np.float32), np.zeros(1, np.float32))
    assert logits.isfinite().tolist() == [[False, True, True, True, False]]


def test_the_distribution_is_that_of_the_logits() -> None:
    """Chi-square over 20,000 draws at temperature 0.7 with fixed seeds; 19 degrees of freedom."""
    rows, vocabulary, temperature = 20_000, 20, 0.7
    row = torch.linspace(-1.5, 1.5, vocabulary)
    tokens = sample(
        row.repeat(rows, 1), settings(rows, temperature=np.full(rows, temperature, np.float32))
    )
    expected = (row / temperature).softmax(0).numpy() * rows
    seen = np.bincount(tokens, minlength=vocabulary)
    statistic = float(((seen - expected) ** 2 / expected).sum())
    assert statistic < 43.8  # 0.1 % of correct samplers exceed it; the seeds are fixed


def test_successive_draws_of_one_seed_are_uniform_and_distinct() -> None:
    seeds = np.full(50_000, 42, dtype=np.uint64)
    numbers = uniform_numbers(seeds, np.arange(50_000))
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = np.histogram(numbers, bins=50, range=(0, 1))[0]
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 85.4  # 0.1 % at 49 degrees of freedom
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.02
    assert len(np.unique(numbers)) > 49_000


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    rng = np.random.default_rng(1)
    logits = torch.from_numpy(rng.normal(0, 2, (6, 500)).astype(np.float32))
    batch = settings(
        6,
        temperature=np.array([0, 0.5, 1, 1.5, 1, 0.8], dtype=np.float32),
        top_k=np.array([0, 5, 0, 40, 0, 0]),
        top_p=np.array([1, 1, 0.9, 0.8, 1, 0.2], dtype=np.float32),
        min_p=np.array([0, 0, 0, 0, 0.1, 0], dtype=np.float32),
    )
    together = sample(logits.clone(), batch)
    alone = [
        sample(
            logits[i : i + 1].clone(),
            SamplingBatch(
                batch.temperature[i : i + 1],
                batch.top_k[i : i + 1],
                batch.top_p[i : i + 1],
                batch.min_p[i : i + 1],
                batch.uniforms[i : i + 1],
            ),
        )[0]
        for i in range(6)
    ]
    assert together.tolist() == alone
    assert together[0] == int(logits[0].argmax())


@pytest.mark.parametrize("uniform", [0.0, 1 - 2.0**-24])
def test_the_ends_of_the_unit_interval_give_tokens_with_weight(uniform: float) -> None:
    logits = torch.full((1, 64), -torch.inf)
    logits[0, 10], logits[0, 30] = 0.3, -0.2
    token = sample(logits, settings(1, uniforms=np.array([uniform], dtype=np.float32)))
    assert token.tolist() == [10 if uniform == 0 else 30]
