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
    """Tokens start..end of the flat batch are one sequence that sees `num_keys` tokens."""

    start: int
    end: int
    num_keys: int
    cache_rows: Tensor
    mask: Tensor | None  # [T, num_keys]; None: plain causal, nothing was cached before


@dataclass(frozen=True, slots=True)
class Plan:
    """Split of one batch for one KV group.

    `store_rows` is [T x 2], rows of kv_heads x head_dim values. `fp8_values` is what each of 256
    bytes means in an fp8 cache, None for a cache of plain numbers.
    """

    store_rows: Tensor
    decode_groups: list[DecodeGroup]
    prefills: list[PrefillSequence]
    fp8_values: Tensor | None

    @property
    def is_one_decode_group(self) -> bool:
        """True for the usual step: decodes of similar length and nothing else."""
        return len(self.decode_groups) == 1 and not self.prefills


@dataclass(frozen=True, slots=True)
class _Tables:
    """One KV group of a batch: its block tables, and which keys its queries see."""

    block_table: IntArray  # [S, blocks]
    spec: KVCacheSpec
    window: int | None
    dtype: torch.dtype
    device: torch.device

    def first_block(self, position: IntArray) -> IntArray:
        """Block of the first key that a query at `position` sees."""
        return np.maximum(self.first_key(position), 0) // self.spec.block_size

    def first_key(self, position: IntArray) -> IntArray:
        """Position of the first key that a query at `position` sees; may be negative."""
        if self.window is None:
            return np.zeros_like(position)
        return position - self.window + 1

    def cache_rows(self, sequences: IntArray, first: IntArray, num_blocks: int) -> Tensor:
        """Row numbers in the order key or value, sequence, block."""
        columns = first[:, None] + np.arange(num_blocks)
        columns = np.minimum(columns, self.block_table.shape[1] - 1)  # masked, whatever it holds
        blocks = self.block_table[sequences[:, None], columns] * 2
        return _to_device(np.stack((blocks, blocks + 1)).reshape(-1), self.device)

    def bias(self, hidden: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Tensor:
        """0, or -inf where `hidden`."""
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device)
        return mask.masked_fill_(_to_device(hidden, self.device), -torch.inf)


def build_plans(
    batch: StepBatch, spec: KVCacheSpec, dtype: torch.dtype, device: torch.device
) -> list[Plan]:
    """One plan per KV group."""
    is_fp8 = storage_dtype(spec, dtype) == torch.uint8
    fp8_values = _fp8_values(dtype, device) if is_fp8 else None
    return [
        _build_plan(
            batch,
            batch.slot_mapping[number],
            _Tables(batch.block_table[number], spec, group.sliding_window, dtype, device),
            fp8_values,
        )
        for number, group in enumerate(spec.groups)
    ]


def _build_plan(
    batch: StepBatch, slot_mapping: IntArray, tables: _Tables, fp8_values: Tensor | None
) -> Plan:
    """Sequences with one token are decodes, whatever they are to the scheduler."""
    lengths = np.diff(batch.query_start_loc)
    context = batch.num_computed + lengths
    decodes = np.flatnonzero(lengths == 1)
    visible = context - tables.first_block(context - 1) * tables.spec.block_size
    groups = split_by_length(decodes, visible, tables.spec.block_size)
    prefills = np.flatnonzero(lengths > 1)
    return Plan(
        store_rows=_store_rows(slot_mapping, tables.spec, tables.device),
        decode_groups=[_decode_group(batch, group, context, tables) for group in groups],
        prefills=[_prefill(batch, int(index), tables) for index in prefills],
        fp8_values=fp8_values,
    )


def storage_dtype(spec: KVCacheSpec, dtype: torch.dtype) -> torch.dtype:
    """How the cache holds values of `dtype`: as they are, or the bits of float8 e4m3."""
    return torch.uint8 if spec.dtype_bytes == 1 else dtype


def _fp8_values(dtype: torch.dtype, device: torch.device) -> Tensor:
    bits = torch.arange(256, dtype=torch.uint8, device=device)
    return bits.view(torch.float8_e4m3fn).to(dtype)


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
    batch: StepBatch, sequences: IntArray, context: IntArray, tables: _Tables
) -> DecodeGroup:
    spec = tables.spec
    ends = context[sequences][:, None]
    first = tables.first_block(ends[:, 0] - 1)
    num_blocks = int((-(-ends[:, 0] // spec.block_size) - first).max())
    keys = first[:, None] * spec.block_size + np.arange(num_blocks * spec.block_size)
    hidden = (keys >= ends) | (keys < tables.first_key(ends - 1))
    rows = tables.cache_rows(sequences, first, num_blocks)
    row_values = spec.block_size * spec.num_kv_heads * spec.head_dim
    return DecodeGroup(
        tokens=_to_device(batch.query_start_loc[sequences], tables.device),
        cache_rows=rows,
        mask=tables.bias(hidden[:, None, None]),
        # One buffer for all layers stays in the CPU's cache.
        gathered=torch.empty(
            len(rows), row_values, dtype=storage_dtype(spec, tables.dtype), device=tables.device
        ),
    )


def _prefill(batch: StepBatch, index: int, tables: _Tables) -> PrefillSequence:
    start, end = (int(place) for place in batch.query_start_loc[index : index + 2])
    num_computed = int(batch.num_computed[index])
    num_context = num_computed + end - start
    first = tables.first_block(np.array([num_computed]))
    first_key = int(first[0]) * tables.spec.block_size
    num_blocks = tables.spec.blocks_for(num_context) - int(first[0])
    mask = None
    has_window = tables.window is not None and num_context > tables.window
    if num_computed or has_window or batch.images is not None:
        queries = np.arange(num_computed, num_context)[:, None]
        keys = np.arange(first_key, num_context)
        ends = queries + 1 if batch.images is None else batch.images.key_ends[start:end, None]
        mask = tables.bias((keys >= ends) | (keys < tables.first_key(queries)))
    rows = tables.cache_rows(np.array([index]), first, num_blocks)
    return PrefillSequence(start, end, num_context - first_key, rows, mask)


def _store_rows(slot_mapping: IntArray, spec: KVCacheSpec, device: torch.device) -> Tensor:
    block, offset = np.divmod(slot_mapping, spec.block_size)
    rows = (block * 2 * spec.block_size + offset)[:, None] + np.array((0, spec.block_size))
    return _to_device(rows.reshape(-1), device)


def _to_device(
    array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], device: torch.device
) -> Tensor:
    return torch.from_numpy(array).to(device)
