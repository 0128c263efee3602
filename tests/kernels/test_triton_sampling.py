"""The sampling kernel against the torch sampler, under the interpreter."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

import tests.interpreted_triton  # noqa: F401  (before any kernel)
from engine.kernels.step_batch import NO_TOKEN
from engine.kernels.triton.kernels import TritonKernels
from engine.kernels.triton.runtime import launch
from engine.kernels.triton.sampling import sample
from engine.kernels.triton.targets import INTERPRETED
from engine.worker.sampler import SamplingBatch, filter_logits
from engine.worker.sampler import sample as torch_sample

ROWS = 8


def settings(seed: int) -> SamplingBatch:
    """Every filter on and off, alone and together; some rows greedy."""
    draw = np.random.default_rng(seed)
    return SamplingBatch(
        temperature=draw.choice([0.0, 0.3, 1.0, 2.5], ROWS).astype(np.float32),
        top_k=draw.choice([0, 1, 3, 17, 1000], ROWS),
        top_p=draw.choice([0.05, 0.6, 0.95, 1.0], ROWS).astype(np.float32),
        min_p=draw.choice([0.0, 0.0, 0.02, 0.4], ROWS).astype(np.float32),
        uniforms=draw.random(ROWS, dtype=np.float32),
    )


def drawn(logits: Tensor, batch: SamplingBatch, uniforms: np.ndarray | None = None) -> list[int]:
    tokens = torch.empty(len(logits), dtype=torch.int64)
    sample(
        launch,
        tokens,
        logits,
        torch.from_numpy(batch.temperature),
        torch.from_numpy(batch.top_k.astype(np.int32)),
        torch.from_numpy(batch.top_p),
        torch.from_numpy(batch.min_p),
        torch.from_numpy(batch.uniforms if uniforms is None else uniforms),
        block=128,
        warps=1,
    )
    found: list[int] = tokens.tolist()
    return found


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("vocabulary", [5, 150])
def test_tokens_are_those_of_the_torch_sampler(seed: int, vocabulary: int) -> None:
    torch.manual_seed(seed)
    logits = torch.randn(ROWS, vocabulary) * 3
    before = logits.clone()
    batch = settings(seed)
    assert drawn(logits, batch) == torch_sample(logits.clone(), batch).tolist()
    assert torch.equal(logits, before)


def test_the_first_and_the_last_kept_token_can_be_drawn() -> None:
    """Equal logits: what ties with the last kept token is kept, and nothing else is drawn."""
    torch.manual_seed(1)
    logits = torch.randint(-4, 5, (ROWS, 70)).float() / 2
    batch = settings(11)
    heat = torch.from_numpy(np.where(batch.temperature > 0, batch.temperature, 1)).unsqueeze(1)
    kept = logits / heat
    filter_logits(kept, batch.top_k, batch.top_p, batch.min_p)
    least = drawn(logits, batch, np.zeros(ROWS, np.float32))
    most = drawn(logits, batch, np.full(ROWS, 1 - 2**-24, np.float32))
    for row in range(ROWS):
        if batch.temperature[row] == 0:
            assert least[row] == most[row] == int(logits[row].argmax())
            continue
        places = torch.isfinite(kept[row]).nonzero().flatten()
        assert (least[row], most[row]) == (int(places[0]), int(places[-1]))


def test_the_engines_sampler_draws_with_the_kernel() -> None:
    torch.manual_seed(8)
    logits = torch.randn(ROWS, 60) * 2
    batch = dataclasses.replace(settings(4), top_k=np.array([0, 1, 5, 2**40] * 2))
    draw = TritonKernels(INTERPRETED).draw
    found = torch_sample(logits.clone(), batch, draw)
    assert found.tolist() == torch_sample(logits.clone(), batch).tolist()


def test_rows_that_are_no_numbers_get_no_token() -> None:
    logits = torch.zeros(ROWS, 9)
    logits[3, 8] = torch.nan
    found = drawn(logits, settings(1))
    assert found[3] == NO_TOKEN
    assert NO_TOKEN not in found[:3] + found[4:]
