"""The limits of one step: the device's defaults, what was asked, and what neither may exceed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.args import EngineArgs
from engine.env import HostDevice
from engine.machine.sizes import GIB
from engine.step_budget import StepDevice, step_budget
from tests.engine.dense_model import MODEL

_LIMITS = st.none() | st.integers(1, 1 << 20)


@given(
    memory=st.none() | st.integers(1, 300 * GIB),
    length=st.integers(2, 1 << 20),
    tokens=_LIMITS,
    seqs=_LIMITS,
    is_chunked=st.booleans(),
)
def test_no_step_is_larger_than_its_requests_can_be(
    memory: int | None, length: int, tokens: int | None, seqs: int | None, is_chunked: bool
) -> None:
    budget = step_budget(
        StepDevice("a card", memory),
        length,
        max_num_batched_tokens=tokens,
        max_num_seqs=seqs,
        enable_chunked_prefill=is_chunked,
    )

    assert 1 <= budget.max_num_seqs <= budget.max_num_batched_tokens
    assert budget.max_num_batched_tokens <= (seqs or 1024) * length
    assert seqs is None or budget.max_num_seqs <= seqs
    assert tokens is None or budget.max_num_batched_tokens <= tokens


@pytest.mark.parametrize("length", [2, 5, 1024])
def test_the_engine_sizes_its_step_by_the_same_rule(length: int) -> None:
    card = HostDevice("cuda", "NVIDIA H100", 80 * GIB)
    args = EngineArgs(max_num_seqs=4, max_model_len=length)
    scheduler = args.create_engine_config(MODEL, card).scheduler

    assert scheduler.max_num_batched_tokens == 4 * length
