"""Ranks of a model as threads of one process: their parts are built and run side by side."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from engine.kernels.kernel_set import StageStep
from engine.kernels.step_batch import ImageTokens, IntArray, StepBatch
from engine.rank_layout import RankPlace
from engine.worker.model_runner import dummy_batch

BuildStage: TypeAlias = Callable[[list[RankPlace]], list[StageStep]]
"""The models of the ranks of one stage."""

_TOKENS, _BLOCK = 60, 16


class ThreadRanks:
    """Ranks that are threads of this process."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=60)
        self.slots: list[Tensor] = [torch.empty(0)] * size

    def exchange(self, rank: int, x: Tensor) -> list[Tensor]:
        self.slots[rank] = x
        self.barrier.wait()
        found = list(self.slots)
        self.barrier.wait()
        return found


@dataclass(frozen=True)
class ThreadRank:
    ranks: ThreadRanks
    rank: int

    def sum(self, x: Tensor) -> Tensor:
        return torch.stack([part.float() for part in self.ranks.exchange(self.rank, x)]).sum(0)

    def gather_columns(self, x: Tensor, widths: list[int]) -> Tensor:
        parts = self.ranks.exchange(self.rank, x)
        assert [part.shape[1] for part in parts] == widths
        return torch.cat(parts, -1)


def two_prompts(vocab_size: int, num_groups: int) -> StepBatch:
    """Of 30 tokens each, in blocks 1 to 4."""
    batch = dummy_batch(_TOKENS, 2, _BLOCK, num_groups)
    batch.token_ids[:] = np.arange(_TOKENS) * 7 % vocab_size
    batch.block_table[:] = [[[1, 2], [3, 4]]]
    owners = batch.block_table.repeat(_TOKENS // 2, axis=1)
    blocks = owners[:, range(_TOKENS), batch.positions // _BLOCK]
    batch.slot_mapping[:] = blocks * _BLOCK + batch.positions % _BLOCK
    return batch


def with_image(batch: StepBatch, hidden_size: int) -> StepBatch:
    """`two_prompts` with an image of 14 tokens in the second one."""
    image = slice(_TOKENS // 2 + 5, _TOKENS // 2 + 19)
    rows, key_ends = np.full(_TOKENS, -1), batch.positions + 1
    rows[image], key_ends[image] = np.arange(14), 19
    embeddings = np.random.default_rng(6).normal(size=(14, hidden_size)).astype(np.float32)
    return dataclasses.replace(batch, images=ImageTokens(embeddings, rows, key_ends))


def run_stages(
    places: list[RankPlace], build: BuildStage, batch: StepBatch
) -> tuple[Tensor, IntArray]:
    """Logits and most likely tokens of the output rank, one stage after the other."""
    for stage in range(places[-1].num_stages):
        stage_places = [place for place in places if place.stage == stage]
        models = build(stage_places)

        def run(
            rank: int, models: list[StageStep] = models, batch: StepBatch = batch
        ) -> tuple[Tensor, IntArray | None]:
            model = models[rank]
            if batch.residual is not None:  # each rank adds to one of its own
                batch = dataclasses.replace(batch, residual=batch.residual.copy())
            if not stage_places[rank].is_last_stage:  # noqa: B023 - the pool ends in this turn
                return model.residual(batch, model.create_kv_cache(5)), None
            second = dataclasses.replace(batch)
            if batch.residual is not None:
                second = dataclasses.replace(batch, residual=batch.residual.copy())
            logits = model.forward(batch, model.create_kv_cache(5))
            return logits, model.greedy_tokens(second, model.create_kv_cache(5))

        with ThreadPoolExecutor(len(models)) as pool:
            results = list(pool.map(run, range(len(models))))
        found, tokens = results[0]
        if tokens is None:
            batch = dataclasses.replace(batch, residual=found.numpy())
            if (images := batch.images) is not None:  # whose rows only the first stage has
                none, rows = np.zeros((0, 0), dtype=np.float32), np.full(_TOKENS, -1)
                batch = dataclasses.replace(batch, images=ImageTokens(none, rows, images.key_ends))
    assert tokens is not None
    return found, tokens
