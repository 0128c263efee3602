"""Plan: the index tensors and masks that the reference set derives once per step for all layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.kernels.step_batch import IntArray, StepBatch
from engine.kv_sizing import KVCacheSpec

_SPLIT_BLOCKS = 64
"""Padding blocks that cost about as much as the calls of one more decode group."""


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """B sequences with one new token each and similar lengths, padded to a common length L."""

    tokens: Tensor  # [B] rows of the flat batch
    cache_rows: Tensor  # [2 x B x blocks] rows of the cache seen as (block, key or value)
    mask: Tensor  # [B, 1, 1, L] 0 or -inf
    gathered: Tensor  # [2 x B x blocks, values of one row] filled anew by each layer


@dataclass(frozen=True, slots=True)
class PrefillSequence:
    """Tokens start..end of the flat batch are one sequence that is `num_context` tokens long."""

    start: int
    end: int
    num_context: int
    cache_rows: Tensor
    mask: Tensor | None  # [T, num_context]; None: plain causal, nothing was cached before


@dataclass(frozen=True, slots=True)
class Plan:
    """Split of one batch. `store_rows` is [T x 2], rows of kv_heads x head_dim values."""

    store_rows: Tensor
    decode_groups: list[DecodeGroup]
    prefills: list[PrefillSequence]

    @property
    def is_one_decode_group(self) -> bool:
        """True for the usual step: decodes of similar length and nothing else."""
        return len(self.decode_groups) == 1 and not self.prefills


def build_plan(
    batch: StepBatch, spec: KVCacheSpec, dtype: torch.dtype, device: torch.device
) -> Plan:
    """Sequences with one token are decodes, whatever they are to the scheduler."""
    lengths = np.diff(batch.query_start_loc)
    context = batch.num_computed + lengths
    decodes = np.flatnonzero(lengths == 1)
    groups = split_by_length(decodes, context, spec.block_size)
    prefills = np.flatnonzero(lengths > 1)
    return Plan(
        store_rows=_store_rows(batch.slot_mapping, spec, device),
        decode_groups=[_decode_group(batch, g, context, spec, dtype, device) for g in groups],
        prefills=[_prefill(batch, int(index), spec, dtype, device) for index in prefills],
    )


def split_by_length(sequences: IntArray, context: IntArray, block_size: int) -> list[IntArray]:
    """Cut the sequences into groups of similar length, so that one long context does not pad all.

    One group keeps the order of the batch; several are ordered by length, longest first.
    """
    if not len(sequences):
        return []
    blocks = -(-context[sequences] // block_size)
    order = np.argsort(-blocks, kind="stable")
    cuts, longest = [], int(blocks[order[0]])
    for place, index in enumerate(order):
        if (longest - blocks[index]) * (len(order) - place) > _SPLIT_BLOCKS:
            cuts.append(place)
            longest = int(blocks[index])
    return np.split(sequences[order], cuts) if cuts else [sequences]


def _decode_group(
    batch: StepBatch,
    sequences: IntArray,
    context: IntArray,
    spec: KVCacheSpec,
    dtype: torch.dtype,
    device: torch.device,
) -> DecodeGroup:
    longest = int(context[sequences].max())
    width = spec.blocks_for(longest) * spec.block_size
    hidden = np.arange(width) >= context[sequences][:, None]
    mask = torch.zeros(len(sequences), 1, 1, width, dtype=dtype, device=device)
    mask.masked_fill_(_to_device(hidden[:, None, None], device), -torch.inf)
    rows = _cache_rows(batch, sequences, longest, spec, device)
    row_values = spec.block_size * spec.num_kv_heads * spec.head_dim
    return DecodeGroup(
        tokens=_to_device(batch.query_start_loc[sequences], device),
        cache_rows=rows,
        mask=mask,
        # One buffer for all layers stays in the CPU's cache.
        gathered=torch.empty(len(rows), row_values, dtype=dtype, device=device),
    )


def _prefill(
    batch: StepBatch, index: int, spec: KVCacheSpec, dtype: torch.dtype, device: torch.device
) -> PrefillSequence:
    start, end = (int(place) for place in batch.query_start_loc[index : index + 2])
    num_computed = int(batch.num_computed[index])
    num_context = num_computed + end - start
    mask = None
    if num_computed:
        hidden = torch.ones(end - start, num_context, dtype=torch.bool, device=device)
        hidden = hidden.triu_(num_computed + 1)
        mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
        mask.masked_fill_(hidden, -torch.inf)
    rows = _cache_rows(batch, np.array([index]), num_context, spec, device)
    return PrefillSequence(start, end, num_context, rows, mask)


def _cache_rows(
    batch: StepBatch, sequences: IntArray, num_tokens: int, spec: KVCacheSpec, device: torch.device
) -> Tensor:
    """Row numbers in the order key or value, sequence, block."""
    blocks = batch.block_table[sequences, : spec.blocks_for(num_tokens)] * 2
    return _to_device(np.stack((blocks, blocks + 1)).reshape(-1), device)


def _store_rows(slot_mapping: IntArray, spec: KVCacheSpec, device: torch.device) -> Tensor:
    block, offset = np.divmod(slot_mapping, spec.block_size)
    rows = (block * 2 * spec.block_size + offset)[:, None] + np.array((0, spec.block_size))
    return _to_device(rows.reshape(-1), device)


def _to_device(
    array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], device: torch.device
) -> Tensor:
    return torch.from_numpy(array).to(device)
