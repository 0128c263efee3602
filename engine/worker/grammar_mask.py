"""GrammarMask: the tokens that structured output rules out in one step, applied all at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.kernels.step_batch import IntArray
from engine.sched.scheduler_output import GrammarBitmask
from engine.worker.host_arrays import on_device


@dataclass(frozen=True, slots=True)
class GrammarMask:
    """Row numbers of the step, and for each of them which tokens are forbidden."""

    rows: IntArray
    forbidden: NDArray[np.bool_]

    @classmethod
    def of(cls, bitmask: GrammarBitmask, wanted: IntArray, rows: IntArray) -> GrammarMask:
        """Unpack; `wanted` are the batch rows of the bitmask's requests, `rows` the step's.

        Both name a request once for each of its positions, one behind the other.
        """
        order = np.argsort(rows, kind="stable")
        bits = np.unpackbits(~bitmask.rows.view(np.uint8), axis=1, bitorder="little")
        first = np.searchsorted(rows, wanted, sorter=order)
        is_new = np.append(True, wanted[1:] != wanted[:-1])
        starts = np.flatnonzero(is_new)
        ahead = np.arange(len(wanted)) - starts[np.cumsum(is_new) - 1]
        return cls(order[first + ahead], bits.view(np.bool_))

    def apply(self, logits: Tensor) -> None:
        """Change `logits` [R, vocabulary] in place: what the grammar forbids gets -inf, which is
        below what `logit_edits` forbids, so the grammar has the last word.
        """
        rows = on_device(self.rows, logits.device)
        forbidden = on_device(self.forbidden[:, : logits.shape[1]], logits.device)
        chosen = logits.index_select(0, rows).masked_fill_(forbidden, -torch.inf)
        logits.index_copy_(0, rows, chosen)
