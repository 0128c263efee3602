"""Sampler: float32 logits of one step -> one token per row, all rows at once.

Random rows use one uniform number each, hashed from (seed, number of the output token): a seeded
request gets the same numbers whatever else runs. Filters work on values, so tokens that tie with
the last kept one are kept too, and the result does not depend on the order of a sort.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.kernels.kernel_set import Draw, DrawSettings, most_likely
from engine.kernels.step_batch import NO_TOKEN, IntArray
from engine.sched.scheduler_output import GrammarBitmask
from engine.worker.grammar_mask import GrammarMask
from engine.worker.host_arrays import on_device
from engine.worker.input_batch import InputBatch
from engine.worker.logit_edits import LogitEdits

_CANDIDATES = (256, 4096)
"""Largest logits looked at for top-p before the whole row is sorted, which takes 5 to 30 times as
long.
"""


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Settings of the R rows of one step (numpy, host)."""

    temperature: NDArray[np.float32]
    top_k: IntArray
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]
    uniforms: NDArray[np.float32]
    edits: LogitEdits | None = None
    grammar: GrammarMask | None = None

    def edit(self, logits: Tensor) -> None:
        """Change `logits` [R, vocabulary] in place as the requests and their grammars want it."""
        if self.edits is not None:
            self.edits.apply(logits)
        if self.grammar is not None:
            self.grammar.apply(logits)

    @property
    def settings(self) -> DrawSettings:
        """What draws a token, without edits and grammars."""
        return self.temperature, self.top_k, self.top_p, self.min_p, self.uniforms

    @classmethod
    def of(
        cls,
        batch: InputBatch,
        rows: IntArray,
        bitmask: GrammarBitmask | None = None,
        ahead: IntArray | None = None,
    ) -> SamplingBatch:
        """Settings of the requests in `rows`; `ahead` tokens of its draft stand before each."""
        num_outputs = batch.num_tokens[rows] - batch.num_prompt_tokens[rows]
        if ahead is not None:
            num_outputs = num_outputs + ahead
        return cls(
            temperature=batch.temperature[rows],
            top_k=batch.top_k[rows],
            top_p=batch.top_p[rows],
            min_p=batch.min_p[rows],
            uniforms=uniform_numbers(batch.seeds[rows], num_outputs),
            edits=LogitEdits.of(batch, rows, ahead),
            grammar=GrammarMask.of(bitmask, batch.rows(bitmask.req_ids), rows) if bitmask else None,
        )


@torch.inference_mode()
def sample(logits: Tensor, batch: SamplingBatch, draw: Draw | None = None) -> IntArray:
    """Token id of each row, NO_TOKEN where one is NaN. `logits` [R, vocabulary] is overwritten.

    `draw` is a kernel that filters and draws; without one torch does.
    """
    batch.edit(logits)
    if draw is not None:
        found: IntArray = draw(logits, batch.settings).cpu().numpy()
        return found
    tokens = most_likely(logits)
    random = np.flatnonzero(batch.temperature > 0)
    if len(random):
        rows = _tensor(random, logits)
        chosen = logits if len(random) == len(logits) else logits.index_select(0, rows)
        drawn = _sample_random(chosen, batch, random)
        has_none = tokens.index_select(0, rows) == NO_TOKEN
        tokens.index_copy_(0, rows, drawn.masked_fill_(has_none, NO_TOKEN))
    result: IntArray = tokens.cpu().numpy()
    return result


def uniform_numbers(seeds: NDArray[np.uint64], counters: IntArray) -> NDArray[np.float32]:
    """One number in [0, 1) per row, 24 random bits each (splitmix64 of seed and counter)."""
    state = _mix(_mix(seeds) + counters.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    return np.asarray((state >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24))


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(value ^ (value >> np.uint64(31)))


def _sample_random(logits: Tensor, batch: SamplingBatch, rows: IntArray) -> Tensor:
    """Inverse transform sampling in vocabulary order over what the filters keep."""
    logits.div_(_tensor(batch.temperature[rows], logits).unsqueeze(1))
    filter_logits(logits, batch.top_k[rows], batch.top_p[rows], batch.min_p[rows])
    weights = logits.sub_(logits.amax(-1, keepdim=True)).exp_()
    cumulative = weights.cumsum(-1)
    total = cumulative[:, -1]
    target = total * _tensor(batch.uniforms[rows], logits)
    # Rounding must not push the target onto the total, behind the last token that has any weight.
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target.unsqueeze(1), right=True).squeeze(1)


def filter_logits(
    logits: Tensor, top_k: IntArray, top_p: NDArray[np.float32], min_p: NDArray[np.float32]
) -> None:
    """Set what min-p, top-k and top-p (in this order) drop to -inf, in place."""
    if (min_p > 0).any():
        share = _tensor(min_p, logits).unsqueeze(1)
        logits.masked_fill_(logits < logits.amax(-1, keepdim=True) + share.log(), -torch.inf)
    vocabulary = logits.shape[1]
    effective_k = np.where((top_k <= 0) | (top_k > vocabulary), vocabulary, top_k)
    _apply_top_k(logits, effective_k)
    for width in (*(width for width in _CANDIDATES if width < vocabulary), vocabulary):
        rows = np.flatnonzero(top_p < 1)
        if not len(rows):
            return
        top_p = np.where(_apply_top_p(logits, top_p, rows, width), np.float32(1), top_p)


def _apply_top_k(logits: Tensor, top_k: IntArray) -> None:
    rows = np.flatnonzero(top_k < logits.shape[1])
    if not len(rows):
        return
    index = _tensor(rows, logits)
    selected = logits.index_select(0, index)
    largest = selected.topk(int(top_k[rows].max()), dim=-1).values
    threshold = largest.gather(1, _tensor(top_k[rows] - 1, logits).unsqueeze(1))
    logits.index_copy_(0, index, selected.masked_fill_(selected < threshold, -torch.inf))


def _apply_top_p(
    logits: Tensor, top_p: NDArray[np.float32], rows: IntArray, width: int
) -> NDArray[np.bool_]:
    """Filter those of `rows` whose `width` largest logits hold the mass; True where done."""
    index = _tensor(rows, logits)
    selected = logits.index_select(0, index)
    largest = selected.topk(width, dim=-1).values
    mass = (largest - selected.logsumexp(-1, keepdim=True)).exp().cumsum(-1)
    wanted = _tensor(top_p[rows], logits).unsqueeze(1)
    count = (mass < wanted).sum(-1, keepdim=True)  # tokens before the one that reaches the mass
    finished = count.squeeze(1) < width
    threshold = largest.gather(1, count.clamp_(max=width - 1))
    if width == logits.shape[1]:
        finished.fill_(True)  # rounding may leave the whole row below the mass: then all is kept
    threshold.masked_fill_(~finished.unsqueeze(1), -torch.inf)
    logits.index_copy_(0, index, selected.masked_fill_(selected < threshold, -torch.inf))
    done = np.zeros(len(top_p), dtype=np.bool_)
    done[rows] = finished.cpu().numpy()
    return done


def _tensor(array: NDArray[np.generic], like: Tensor) -> Tensor:
    return on_device(array, like.device)
