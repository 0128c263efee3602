"""The one buffer of a step's index arrays: what is packed comes out again, within its capacity."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.kernels.step_batch import StepBatch
from engine.kernels.triton.step_inputs import StepSize, pack, packed_capacity, unpack


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 2), st.sampled_from([1, 4])
)
def test_arrays_come_out_as_they_went_in(lengths: list[int], groups: int, tile_tokens: int) -> None:
    total, count = sum(lengths), len(lengths)
    ends = np.cumsum(lengths)
    batch = StepBatch(
        token_ids=np.arange(total) + 100,
        positions=np.arange(total),
        slot_mapping=np.arange(groups * total).reshape(groups, total),
        query_start_loc=np.concatenate(([0], ends)),
        num_computed=np.arange(count) * 3,
        block_table=np.arange(groups * count * 5).reshape(groups, count, 5),
        logits_rows=np.arange(total),
    )
    size = StepSize(total + 3, count)
    packed = pack(batch, size, tile_tokens)
    assert len(packed) <= packed_capacity(size.tokens, size.sequences, groups, 5)
    step = unpack(packed, torch.from_numpy(packed), size, groups)
    assert step.num_tokens == total
    assert step.token_ids[:total].tolist() == batch.token_ids.tolist()
    assert step.slots[:, :total].tolist() == batch.slot_mapping.tolist()
    assert (step.slots[:, total:] == -1).all()
    assert step.tables.tolist() == batch.block_table.tolist()
    assert step.contexts.tolist() == (batch.num_computed + lengths).tolist()
    assert step.rows.tolist() == batch.logits_rows.tolist()
    # Every token is a decode's or lies in exactly one tile.
    assert step.decodes.tolist() == [n for n, length in enumerate(lengths) if length == 1]
    tiles = list(zip(step.tile_sequences.tolist(), step.tile_starts.tolist(), strict=True))
    assert tiles == [
        (number, first)
        for number, length in enumerate(lengths)
        if length > 1
        for first in range(0, length, tile_tokens)
    ]
