"""One step's index arrays as one int32 buffer: a single copy brings all of them to the device.

What a recorded graph reads lies at places that depend on the graph's size alone; how wide the block
tables are is a number in the buffer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.kernels.step_batch import IntArray, StepBatch, within_runs

Packed = NDArray[np.int32]
_HEADER = 5  # numbers before the arrays: the table's width, then what is not padded


@dataclass(frozen=True, slots=True)
class StepSize:
    """Tokens and sequences that a step is padded to; a padding token has no slot and no context.

    `is_uniform`: sequence i is token i, so no list of decodes or tiles is needed.
    """

    tokens: int
    sequences: int
    is_uniform: bool = False


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Views of the buffer, padding included; T, S, G and R are those of StepBatch."""

    size: StepSize
    num_tokens: int  # without padding
    table_width: Tensor  # [1]
    token_ids: Tensor  # [T]
    positions: Tensor  # [T]
    slots: Tensor  # [G, T]; -1: nothing to store
    contexts: Tensor  # [S] tokens of the sequence after the step
    query_start: Tensor  # [S + 1]
    tables: Tensor  # [G, S, W]
    decodes: Tensor  # sequences of one token, where the step is not uniform
    tile_sequences: Tensor  # the other sequences, cut into tiles of queries
    tile_starts: Tensor
    rows: Tensor  # [R] tokens that need logits


def pack(batch: StepBatch, size: StepSize, tile_tokens: int) -> Packed:
    """All arrays of the step, padded to `size`; chunks are cut into tiles of `tile_tokens`."""
    lengths = np.diff(batch.query_start_loc)
    tokens, sequences = size.tokens - len(batch.token_ids), size.sequences - len(lengths)
    decodes, owners, starts = _tiles(lengths, size, tile_tokens)
    table = np.pad(batch.block_table, ((0, 0), (0, sequences), (0, 0)))
    parts = (
        [table.shape[2], len(batch.token_ids), len(decodes), len(owners), len(batch.logits_rows)],
        np.pad(batch.token_ids, (0, tokens)),
        np.pad(batch.positions, (0, tokens)),
        np.pad(batch.slot_mapping, ((0, 0), (0, tokens)), constant_values=-1).ravel(),
        np.pad(batch.num_computed + lengths, (0, sequences)),
        np.pad(batch.query_start_loc, (0, sequences), mode="edge"),
        table.ravel(),
        decodes,
        owners,
        starts,
        batch.logits_rows,
    )
    return np.concatenate(parts).astype(np.int32)


def unpack(packed: Packed, buffer: Tensor, size: StepSize, num_groups: int) -> StepInputs:
    """Views of `buffer`, which holds a copy of `packed` at its beginning."""
    width, num_tokens, num_decodes, num_tiles, num_rows = map(int, packed[:_HEADER])
    lengths = [
        *(_HEADER, size.tokens, size.tokens, num_groups * size.tokens),
        *(size.sequences, size.sequences + 1, num_groups * size.sequences * width),
        *(num_decodes, num_tiles, num_tiles, num_rows),
    ]
    header, token_ids, positions, slots, contexts, query_start, tables, *lists = torch.split(
        buffer[: sum(lengths)], lengths
    )
    return StepInputs(
        size,
        num_tokens,
        header[:1],
        token_ids,
        positions,
        slots.view(num_groups, size.tokens),
        contexts,
        query_start,
        tables.view(num_groups, size.sequences, width),
        *lists,
    )


def packed_capacity(max_tokens: int, max_sequences: int, num_groups: int, table_width: int) -> int:
    """Numbers in the largest buffer of a server with these limits."""
    per_token = 2 + num_groups + 2 + 1  # ids, positions, slots, at worst a tile and logits
    per_sequence = 2 + 2 + num_groups * table_width
    return _HEADER + 1 + per_token * max_tokens + per_sequence * max_sequences


def is_uniform_decode(batch: StepBatch, block_size: int) -> bool:
    """One token for each sequence, none of which reads a block that another fills in this step."""
    count = len(batch.num_computed)
    return len(batch.token_ids) == count and not _reads_a_neighbour(batch, block_size)


def _reads_a_neighbour(batch: StepBatch, block_size: int) -> bool:
    """A block is shared once it is full: by a sequence that starts behind it in the same step."""
    offsets = batch.positions % block_size
    starters, fillers = np.flatnonzero(offsets == 0), np.flatnonzero(offsets == block_size - 1)
    for table, slots in zip(batch.block_table, batch.slot_mapping, strict=True):
        filled = slots[fillers] // block_size
        columns = np.arange(table.shape[1])
        before = columns < (batch.positions[starters] // block_size)[:, None]
        if np.isin(table[starters][before], filled).any():
            return True
    return False


def _tiles(
    lengths: IntArray, size: StepSize, tile_tokens: int
) -> tuple[IntArray, IntArray, IntArray]:
    """Sequences that decode; sequence and first token of each tile of the others."""
    if size.is_uniform:
        return (np.zeros(0, dtype=np.int64),) * 3
    chunks = np.flatnonzero(lengths > 1)
    counts = -(-lengths[chunks] // tile_tokens)
    owners = np.repeat(chunks, counts)
    return np.flatnonzero(lengths == 1), owners, within_runs(counts) * tile_tokens
