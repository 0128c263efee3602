"""LogitEdits: biases, penalties, allowed and forbidden tokens of one step, applied all at once.

Only the named places of the logits are touched; rows without edits cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.kernels.step_batch import IntArray, within_runs
from engine.worker.host_arrays import on_device
from engine.worker.input_batch import InputBatch
from engine.worker.row_edits import RowEdits

_Edited: TypeAlias = Sequence[tuple[int, RowEdits]]

FORBIDDEN = -1e30
"""Finite, so that a row whose tokens are all forbidden still gives a token and not NaN."""


@dataclass(frozen=True, slots=True)
class Places:
    """Single logits: row numbers of the step and token ids, in parallel."""

    rows: IntArray
    token_ids: IntArray

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """As an index of the logits."""
        return on_device(self.rows, device), on_device(self.token_ids, device)

    @classmethod
    def joined(cls, parts: list[tuple[int, IntArray]]) -> Places:
        """The tokens of several rows."""
        rows = np.repeat([row for row, _ in parts], [len(ids) for _, ids in parts])
        return cls(rows.astype(np.int64), np.concatenate([ids for _, ids in parts]))


@dataclass(frozen=True, slots=True)
class Penalties:
    """One entry per seen token: how often it was generated and its row's three settings."""

    places: Places
    counts: IntArray
    repetition: NDArray[np.float32]
    presence: NDArray[np.float32]
    frequency: NDArray[np.float32]

    @classmethod
    def of(cls, batch: InputBatch, rows: IntArray, ahead: IntArray) -> Penalties | None:
        """Those of the requests in `rows`, each behind `ahead` tokens of a draft; None when there
        are none.
        """
        numbers = np.flatnonzero(batch.has_penalties[rows])
        if not len(numbers):
            return None
        owner, token_ids, counts = batch.seen.of(rows[numbers])
        owner = numbers[owner]
        if ahead[numbers].any():
            owner, token_ids, counts = _with_drafts(
                batch, rows, ahead, numbers, (owner, token_ids, counts)
            )
        return cls(
            places=Places(owner, token_ids),
            counts=counts,
            repetition=batch.repetition_penalty[rows][owner],
            presence=batch.presence_penalty[rows][owner],
            frequency=batch.frequency_penalty[rows][owner],
        )

    def apply(self, logits: Tensor) -> None:
        """Repetition scales towards less likely; the other two subtract, per use and once."""
        device = logits.device
        index = self.places.on(device)
        values = logits[index]
        repetition = on_device(self.repetition, device)
        values = torch.where(values > 0, values / repetition, values * repetition)
        subtracted = self.frequency * self.counts + self.presence * (self.counts > 0)
        logits[index] = values - on_device(subtracted.astype(np.float32), device)


@dataclass(frozen=True, slots=True)
class LogitEdits:
    """All edits of one step. The order is vLLM's: bias, penalties, then what is ruled out."""

    bias: tuple[Places, NDArray[np.float32]] | None
    penalties: Penalties | None
    allowed: tuple[IntArray, Places] | None  # the rows concerned, and their allowed tokens
    forbidden: Places | None

    @classmethod
    def of(
        cls, batch: InputBatch, rows: IntArray, ahead: IntArray | None = None
    ) -> LogitEdits | None:
        """The edits of the requests in `rows`, each behind `ahead` tokens of its draft; None when
        there are none (the usual case).
        """
        if ahead is None:
            ahead = np.zeros(len(rows), dtype=np.int64)
        edited = [
            (number, batch.edits[int(rows[number])])
            for number in np.flatnonzero(batch.has_edits[rows]).tolist()
        ]
        penalties = Penalties.of(batch, rows, ahead)
        if not edited and penalties is None:
            return None
        forbidden = [
            (number, _forbidden(batch, int(rows[number]), int(ahead[number]), edits))
            for number, edits in edited
        ]
        return cls(
            bias=_bias(edited),
            penalties=penalties,
            allowed=_allowed(edited),
            forbidden=Places.joined(forbidden) if forbidden else None,
        )

    def apply(self, logits: Tensor) -> None:
        """Change `logits` [R, vocabulary] in place."""
        device = logits.device
        if self.bias is not None:
            places, bias = self.bias
            logits[places.on(device)] += on_device(bias, device)
        if self.penalties is not None:
            self.penalties.apply(logits)
        if self.allowed is not None:
            rows, places = self.allowed
            index = places.on(device)
            kept = logits[index]
            logits.index_fill_(0, on_device(rows, device), FORBIDDEN)
            logits[index] = kept
        if self.forbidden is not None:
            logits[self.forbidden.on(device)] = FORBIDDEN


def _bias(edited: _Edited) -> tuple[Places, NDArray[np.float32]] | None:
    biased = [(number, edits) for number, edits in edited if len(edits.bias)]
    if not biased:
        return None
    places = Places.joined([(number, edits.bias_ids) for number, edits in biased])
    return places, np.concatenate([edits.bias for _, edits in biased])


def _allowed(edited: _Edited) -> tuple[IntArray, Places] | None:
    allowed = [(number, edits.allowed) for number, edits in edited if len(edits.allowed)]
    if not allowed:
        return None
    return np.array([number for number, _ in allowed]), Places.joined(allowed)


def _with_drafts(
    batch: InputBatch,
    rows: IntArray,
    ahead: IntArray,
    numbers: IntArray,
    seen: tuple[IntArray, IntArray, IntArray],
) -> tuple[IntArray, IntArray, IntArray]:
    """Seen tokens as (number, token id, count), and those of the drafts that stand before each of
    `numbers` counted as generated ones.
    """
    drafted = np.repeat(numbers, ahead[numbers])
    places = batch.num_tokens[rows[drafted]] + within_runs(ahead[numbers])
    owner = np.concatenate([seen[0], drafted])
    token_ids = np.concatenate([seen[1], batch.token_ids[rows[drafted], places]])
    counts = np.concatenate([seen[2], np.ones(len(drafted), dtype=np.int64)])
    keys, place = np.unique(owner << 32 | token_ids, return_inverse=True)
    total = np.bincount(place, weights=counts).astype(np.int64)
    return keys >> 32, keys & 0xFFFFFFFF, total


def _forbidden(batch: InputBatch, row: int, ahead: int, edits: RowEdits) -> IntArray:
    """Tokens that the request in `row` may not get behind `ahead` tokens of its draft."""
    start, end = int(batch.num_prompt_tokens[row]), int(batch.num_tokens[row]) + ahead
    parts = [edits.stop_ids] if end - start < batch.min_tokens[row] else []
    if edits.bad_words is not None:
        parts.append(edits.bad_words.forbidden_after(batch.token_ids[row, start:end]))
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
