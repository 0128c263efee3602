"""Pooler: hidden states of prompts -> one normalised vector each, collected chunk by chunk.

Owns the sums of prompts that are under way. Does not run the model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.kernels.step_batch import IntArray, StepBatch
from engine.sched.scheduler_output import NewRequestData

_MIN_NORM = 1e-12  # a vector of zeros stays one


@dataclasses.dataclass(slots=True)
class _Prompt:
    needs_every_token: bool
    total: Tensor | None = None  # float64 sum of the rows so far
    num_rows: int = 0


class Pooler:
    """Requests that want a vector instead of tokens. Costs nothing while there are none."""

    def __init__(self) -> None:
        self._prompts: dict[str, _Prompt] = {}

    def __bool__(self) -> bool:
        return bool(self._prompts)

    def __contains__(self, req_id: object) -> bool:
        return req_id in self._prompts

    def add(self, request: NewRequestData) -> None:
        """Begin anew, if it is a pooling request: back from preemption it is computed again."""
        if request.pooling is not None:
            self._prompts[request.req_id] = _Prompt(request.pooling.needs_every_token)

    def remove(self, req_ids: Sequence[str]) -> None:
        """Forget requests that have ended or were preempted."""
        for req_id in req_ids:
            self._prompts.pop(req_id, None)

    def with_rows(self, step: StepBatch, req_ids: Sequence[str], complete: IntArray) -> StepBatch:
        """The step of these requests with the rows that they need.

        `complete` are the places whose last token is in it.
        """
        ends = step.query_start_loc[1:]
        wanted = np.zeros(len(step.token_ids), dtype=np.bool_)
        wanted[ends[complete] - 1] = True
        for place, req_id in enumerate(req_ids):
            if self._prompts[req_id].needs_every_token:
                wanted[step.query_start_loc[place] : ends[place]] = True
        return dataclasses.replace(step, logits_rows=np.flatnonzero(wanted))

    def collect(
        self, hidden: Tensor, step: StepBatch, req_ids: Sequence[str], complete: IntArray
    ) -> dict[str, bytes]:
        """Add the rows that `with_rows` asked for; returns the vectors of complete prompts."""
        bounds = np.searchsorted(step.logits_rows, step.query_start_loc).tolist()
        for place, req_id in enumerate(req_ids):
            first, end = bounds[place], bounds[place + 1]
            if end > first:
                prompt = self._prompts[req_id]
                rows = hidden[first:end].sum(0, dtype=torch.float64)
                prompt.total = rows if prompt.total is None else prompt.total + rows
                prompt.num_rows += end - first
        return {req_ids[place]: _vector(self._prompts[req_ids[place]]) for place in complete}


def _vector(prompt: _Prompt) -> bytes:
    """Length 1, little-endian float32; empty if it is no number. A sum has the direction of the
    mean, so nothing is divided by the number of tokens.
    """
    assert prompt.total is not None, "the last token's row is always asked for"
    vector = prompt.total / prompt.total.norm().clamp_min(_MIN_NORM)
    numbers = vector.cpu().numpy().astype("<f4")
    return b"" if np.isnan(numbers).any() else bytes(numbers.tobytes())
