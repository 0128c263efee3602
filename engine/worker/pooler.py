"""Pooler: hidden states of prompts -> one normalised vector each, collected chunk by chunk.

Owns the sums of prompts that are under way. Does not run the model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from engine.kernels.step_batch import IntArray, StepBatch
from engine.pooling_params import PoolingParams
from engine.sched.scheduler_output import NewRequestData

Head = Callable[[Tensor], Tensor]
"""What a model does to the pooled vector [hidden], in float32, before it gets length 1."""

_MIN_NORM = 1e-12  # a vector of zeros stays one


@dataclasses.dataclass(slots=True)
class _Prompt:
    """Rows of one prompt, added up as its pooling wants them; `weight` is the sum of weights."""

    pooling: PoolingParams
    total: Tensor | None = None  # float64
    weight: float = 0.0

    def add(self, rows: Tensor, positions: IntArray) -> None:
        kind, left_out = self.pooling.pooling_type, self.pooling.num_left_out
        if kind == "LAST":
            self.total = rows[-1].double()
            return
        kept = positions == left_out if kind == "CLS" else positions >= left_out
        if not kept.any():
            return
        wanted = rows[torch.from_numpy(kept).to(rows.device)].double()
        if kind == "MAX":
            largest = wanted.amax(0)
            self.total = largest if self.total is None else torch.maximum(self.total, largest)
            return
        weights = positions[kept] + 1.0 if kind == "WEIGHTED_MEAN" else np.ones(int(kept.sum()))
        summed = torch.from_numpy(weights).to(rows.device) @ wanted
        self.total = summed if self.total is None else self.total + summed
        self.weight += float(weights.sum())

    def vector(self, hidden_size: int) -> Tensor:
        """Zeros where nothing was left to pool."""
        if self.total is None:
            return torch.zeros(hidden_size, dtype=torch.float64)
        if self.pooling.pooling_type == "MEAN_SQRT_LEN":
            return torch.div(self.total, self.weight**0.5)
        return torch.div(self.total, self.weight or 1.0)


class Pooler:
    """Requests that want a vector instead of tokens. Costs nothing while there are none."""

    def __init__(self, head: Head | None = None) -> None:
        self._head = head
        self._prompts: dict[str, _Prompt] = {}

    def __bool__(self) -> bool:
        return bool(self._prompts)

    def __contains__(self, req_id: object) -> bool:
        return req_id in self._prompts

    def add(self, request: NewRequestData) -> None:
        """Begin anew, if it is a pooling request: back from preemption it is computed again."""
        if request.pooling is not None:
            self._prompts[request.req_id] = _Prompt(request.pooling)

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
            if self._prompts[req_id].pooling.needs_every_token:
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
                places = step.positions[step.logits_rows[first:end]]
                self._prompts[req_id].add(hidden[first:end], places)
        return {
            req_ids[place]: self._vector(self._prompts[req_ids[place]], hidden.shape[1])
            for place in complete
        }

    def _vector(self, prompt: _Prompt, hidden_size: int) -> bytes:
        """Length 1, little-endian float32; empty if it is no number."""
        vector = prompt.vector(hidden_size)
        if self._head is not None:
            vector = self._head(vector.float()).double()
        vector = vector / vector.norm().clamp_min(_MIN_NORM)
        numbers = vector.cpu().numpy().astype("<f4")
        return b"" if np.isnan(numbers).any() else bytes(numbers.tobytes())
