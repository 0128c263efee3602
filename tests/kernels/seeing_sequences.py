"""PagedSequences with images: tokens with rows of their own, which see their image whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from engine.kernels.kernel_set import ModelStep
from engine.kernels.step_batch import ImageTokens, StepBatch
from tests.kernels.paged_sequences import PagedSequences, Spans


class SeeingSequences(PagedSequences):
    """`images` has the places of each sequence's images. Their rows are random, the same for the
    same sequence's number.
    """

    def __init__(
        self,
        model: ModelStep,
        prompts: list[list[int]],
        images: Sequence[Sequence[range]],
        hidden_size: int,
        block_size: int = 16,
        fill: float = 0.0,
        windows: Sequence[int | None] = (None,),
    ) -> None:
        super().__init__(model, prompts, block_size, fill, windows)
        self._places = [list(places) for places in images]
        self._embeddings = [
            np.random.default_rng(number).normal(size=(len(prompt), hidden_size)).astype(np.float32)
            for number, prompt in enumerate(prompts)
        ]

    def batch(self, spans: Spans) -> StepBatch:
        """The base's, with the images that are in it."""
        step = super().batch(spans)
        key_ends, is_image = step.positions + 1, np.zeros(len(step.positions), dtype=np.bool_)
        parts, first = [], 0
        for number, (start, end) in enumerate(spans):
            for place in self._places[number]:
                inside = range(max(start, place.start), min(end, place.stop))
                if not inside:
                    continue
                assert inside.stop == place.stop, "a step cuts an image"
                tokens = slice(first + inside.start - start, first + inside.stop - start)
                key_ends[tokens], is_image[tokens] = place.stop, True
                parts.append(self._embeddings[number][inside.start : inside.stop])
            first += end - start
        if not parts:
            return step
        rows = np.where(is_image, np.cumsum(is_image) - 1, -1)
        return dataclasses.replace(step, images=ImageTokens(np.concatenate(parts), rows, key_ends))
