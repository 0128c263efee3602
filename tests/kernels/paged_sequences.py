"""Sequences in random blocks of one cache, computed by a ModelStep in any pieces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from engine.kernels.kernel_set import ModelStep
from engine.kernels.step_batch import IntArray, StepBatch

Spans = list[tuple[int, int]]
"""Tokens start..end of each sequence; start == end leaves a sequence out."""


class PagedSequences:
    """`fill` is what unused slots of the cache hold, the null block's among them.

    `adapters` has the slot of each sequence's LoRA adapter, -1 for none.

    `windows` are those of the KV groups. The null block stands for blocks that fell out of one, as
    from the scheduler.
    """

    def __init__(
        self,
        model: ModelStep,
        prompts: list[list[int]],
        block_size: int,
        fill: float = 0.0,
        windows: Sequence[int | None] = (None,),
        adapters: Sequence[int] | None = None,
    ) -> None:
        width = -(-max(len(prompt) for prompt in prompts) // block_size)
        count = len(windows) * len(prompts) * width
        self._model = model
        self._prompts = prompts
        self._block_size = block_size
        self._windows = windows
        self._adapters = None if adapters is None else np.array(adapters, dtype=np.int64)
        order = np.random.default_rng(3).permutation(count) + 1
        self._table = order.reshape(len(windows), len(prompts), width)
        self.cache = model.create_kv_cache(count + 1)
        if fill:
            for layer in self.cache:
                layer.fill_(fill)

    def batch(self, spans: Spans) -> StepBatch:
        """All tokens of the step get logits."""
        used = [number for number, (start, end) in enumerate(spans) if end > start]
        positions = [np.arange(*spans[number]) for number in used]
        tokens = [np.array(self._prompts[n][slice(*spans[n])], dtype=np.int64) for n in used]
        slots = [
            self._table[:, n, p // self._block_size] * self._block_size + p % self._block_size
            for n, p in zip(used, positions, strict=True)
        ]
        lengths = [len(p) for p in positions]
        return StepBatch(
            token_ids=np.concatenate(tokens),
            positions=np.concatenate(positions),
            slot_mapping=np.concatenate(slots, axis=1),
            query_start_loc=np.concatenate(([0], np.cumsum(lengths))),
            num_computed=np.array([spans[n][0] for n in used]),
            block_table=self._visible_table(used, spans),
            logits_rows=np.arange(sum(lengths)),
            adapters=None if self._adapters is None else self._adapters[used].repeat(lengths),
        )

    def _visible_table(self, used: list[int], spans: Spans) -> IntArray:
        table: IntArray = self._table[:, used]
        for group, window in enumerate(self._windows):
            for row, number in enumerate(used):
                first_key = 0 if window is None else max(0, spans[number][0] + 1 - window)
                table[group, row, : first_key // self._block_size] = 0
        return table

    def step(self, spans: Spans) -> list[Tensor]:
        """Logits of each sequence's tokens in this step; none for those left out."""
        logits = self._model.forward(self.batch(spans), self.cache)
        return list(torch.split(logits, [end - start for start, end in spans]))

    def run(self, steps: list[list[int]]) -> list[Tensor]:
        """`steps[i][n]` tokens of sequence n in step i; logits of all tokens, per sequence."""
        parts: list[list[Tensor]] = [[] for _ in self._prompts]
        done = [0] * len(self._prompts)
        for counts in steps:
            ends = [start + count for start, count in zip(done, counts, strict=True)]
            rows = self.step(list(zip(done, ends, strict=True)))
            for part, row in zip(parts, rows, strict=True):
                part.append(row)
            done = ends
        assert done == [len(prompt) for prompt in self._prompts]
        return [torch.cat(part) for part in parts]


def in_chunks(prompts: list[list[int]], chunk: int) -> list[list[int]]:
    """Steps of up to `chunk` tokens of every sequence."""
    longest = max(len(prompt) for prompt in prompts)
    return [
        [max(0, min(chunk, len(prompt) - start)) for prompt in prompts]
        for start in range(0, longest, chunk)
    ]


def draw_steps(data: st.DataObject, lengths: Sequence[int], most: int) -> list[list[int]]:
    """Any schedule of prompts: tokens of each in each step, at most `most`."""
    left, steps = list(lengths), []
    while any(left):
        counts = [data.draw(st.integers(0, min(rest, most))) for rest in left]
        if not any(counts):
            counts = [min(rest, 1) for rest in left]
        steps.append(counts)
        left = [rest - count for rest, count in zip(left, counts, strict=True)]
    return steps
