from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampling_params import SamplingParams
from engine.sched.scheduler_output import NewRequestData
from engine.worker.input_batch import InputBatch

BLOCK_SIZE = 4


@settings(deadline=None, max_examples=50)
@given(
    requests=st.lists(
        st.tuples(st.integers(1, 30), st.integers(0, 29), st.integers(-1, 2)),
        min_size=1,
        max_size=9,
    ),
    num_groups=st.integers(1, 2),
    data=st.data(),
)
def test_a_step_of_single_tokens_is_the_step_that_others_are_made_as(
    requests: list[tuple[int, int, int]], num_groups: int, data: st.DataObject
) -> None:
    batch = InputBatch(len(requests), 64, BLOCK_SIZE, 0, num_groups)
    for number, (num_tokens, num_computed, adapter) in enumerate(requests):
        blocks = list(range(number * 10, number * 10 + -(-num_tokens // BLOCK_SIZE)))
        request = NewRequestData(
            str(number),
            list(range(100 * number, 100 * number + num_tokens)),
            num_tokens,
            [[block + 500 * group for block in blocks] for group in range(num_groups)],
            min(num_computed, num_tokens - 1),
            SamplingParams(),
        )
        batch.add(request, adapter)
    order = data.draw(st.permutations(range(len(requests))))
    rows = batch.rows([str(number) for number in order])
    ones = np.ones(len(rows), dtype=np.int64)
    single, sampling = batch.build_step(rows, ones)
    usual, usual_sampling = batch.build_step(rows, ones, np.zeros_like(ones))  # empty drafts
    assert np.array_equal(sampling, usual_sampling)
    for field in dataclasses.fields(single):
        made, wanted = getattr(single, field.name), getattr(usual, field.name)
        assert (made is None) == (wanted is None), field.name
        if made is not None:
            assert np.array_equal(made, wanted), field.name
            assert made.dtype == wanted.dtype, field.name
            assert made.flags.c_contiguous == wanted.flags.c_contiguous, field.name
