"""Holds a loaded model to transformers' own attention: the same logits through the paged cache.

What no configuration tells shows here: layers that mix tokens in other ways, positions that the
model counts itself, layers without attention.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from engine.kernels.kernel_set import ModelStep
from engine.kernels.step_batch import IntArray, StepBatch
from engine.kv_sizing import KVCacheSpec
from engine.model_config import incompatible

_LENGTHS = np.array((7, 4))
_FIRST_PARTS = np.array((5, 3))  # the rest follows in a second step: a chunk and a decode
_MAX_DIFFERENCE = {torch.float32: 1e-3}
_MAX_DIFFERENCE_16_BIT = 0.2  # rounding alone gives a few hundredths, wrong positions near 1


class CheckedStep(ModelStep, Protocol):
    """A ModelStep over a model of transformers."""

    @property
    def architecture(self) -> str:
        """The name that transformers' class has."""

    @property
    def num_layers(self) -> int:
        """How many of the model's layers should call our attention in a step."""

    @property
    def num_attention_calls(self) -> int:
        """How often the last step called our attention."""


def require_equal_logits(step: CheckedStep, model: Any, spec: KVCacheSpec) -> None:
    """Raise ModelError unless `step` gives what its `model` gives with its own attention."""
    last = model.config.vocab_size - 1
    tokens = [np.linspace(n, last, length, dtype=np.int64) for n, length in enumerate(_LENGTHS)]
    try:
        paged = _paged_logits(step, tokens, spec)
        own = _own_logits(model, tokens)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise incompatible(step.architecture, f"its first step failed ({error})") from error
    if step.num_attention_calls != step.num_layers:
        raise incompatible(
            step.architecture,
            f"a step of its {step.num_layers} layers uses replaceable attention "
            f"{step.num_attention_calls} times",
        )
    places = "over a paged cache", "of its own attention"
    if reason := logits_differ(paged, own, model.dtype, *places):
        raise incompatible(step.architecture, reason)


def logits_differ(ours: Tensor, own: Tensor, dtype: torch.dtype, here: str, there: str) -> str:
    """By how much, where it is more than rounding explains; else empty."""
    difference = float((ours - own).norm() / (own - own.mean(-1, keepdim=True)).norm())
    limit = _MAX_DIFFERENCE.get(dtype, _MAX_DIFFERENCE_16_BIT)
    if difference <= limit:
        return ""
    return f"its logits {here} differ by {difference:.2g} from those {there} (limit {limit})"


def _paged_logits(step: ModelStep, tokens: list[IntArray], spec: KVCacheSpec) -> Tensor:
    """Of all tokens in both steps, those of the first sequence first."""
    shape = (len(spec.groups), len(tokens), spec.blocks_for(int(_LENGTHS.max())))
    table = np.arange(1, 1 + int(np.prod(shape)), dtype=np.int64).reshape(shape)
    cache = step.create_kv_cache(1 + table.size)
    size = spec.block_size
    first = step.forward(_batch(tokens, 0 * _LENGTHS, _FIRST_PARTS, table, size), cache)
    second = step.forward(_batch(tokens, _FIRST_PARTS, _LENGTHS, table, size), cache)
    rest = (_LENGTHS - _FIRST_PARTS).tolist()
    parts = torch.split(first, _FIRST_PARTS.tolist()), torch.split(second, rest)
    return torch.cat([part for pair in zip(*parts, strict=True) for part in pair])


@torch.inference_mode()
def _own_logits(model: Any, tokens: list[IntArray]) -> Tensor:
    ours = model.config._attn_implementation
    model.set_attn_implementation("eager")
    rows = [torch.from_numpy(sequence)[None].to(model.device) for sequence in tokens]
    logits = [model(input_ids=row, use_cache=False).logits[0].float() for row in rows]
    model.set_attn_implementation(ours)
    return torch.cat(logits)


def _batch(
    tokens: list[IntArray], starts: IntArray, ends: IntArray, table: IntArray, block_size: int
) -> StepBatch:
    """Tokens starts..ends of every sequence; all get logits."""
    positions = [np.arange(start, end) for start, end in zip(starts, ends, strict=True)]
    slots = [
        table[:, number, place // block_size] * block_size + place % block_size
        for number, place in enumerate(positions)
    ]
    lengths = ends - starts
    return StepBatch(
        token_ids=np.concatenate([t[p] for t, p in zip(tokens, positions, strict=True)]),
        positions=np.concatenate(positions),
        slot_mapping=np.concatenate(slots, axis=1),
        query_start_loc=np.concatenate(([0], np.cumsum(lengths))),
        num_computed=starts,
        block_table=table,
        logits_rows=np.arange(int(lengths.sum())),
    )
