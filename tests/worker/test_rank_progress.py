"""What ranks note of their steps, and which of them is found to have gone astray."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from engine.kernels.step_batch import StepBatch
from engine.worker.model_runner import dummy_batch
from engine.worker.rank_progress import Progress, StepNote, stray_ranks


@pytest.fixture
def batch() -> StepBatch:
    return dummy_batch(30, 2, 16, 1)


def progress() -> Progress:
    return Progress(bytearray(Progress.NUM_BYTES))


def noted(*batches: StepBatch) -> StepNote:
    """Of a rank's first step, which has these."""
    rank = progress()
    rank.begin_step()
    for batch in batches:
        rank.note_batch(batch)
    note = rank.note(1)
    assert note is not None
    return note


@pytest.mark.parametrize("field", ["token_ids", "positions", "slot_mapping", "num_computed"])
def test_any_difference_is_seen(batch: StepBatch, field: str) -> None:
    other = np.array(getattr(batch, field))
    other.flat[-1] += 1
    changes: dict[str, Any] = {field: other}
    assert noted(batch) == noted(batch)
    assert noted(batch) != noted(dataclasses.replace(batch, **changes))


def test_the_one_that_differs_is_found(batch: StepBatch) -> None:
    other = dataclasses.replace(batch, token_ids=batch.token_ids + 1)
    good, bad = noted(batch), noted(other)
    assert stray_ranks({0: good, 1: good, 2: good}, 2) == []
    assert stray_ranks({0: good, 1: bad, 2: good}, 2) == [1]
    assert stray_ranks({0: good, 1: good, 2: bad}, 2) == [2]
    assert stray_ranks({0: good, 1: bad}, 1) == [0]  # of two, the one that samples is believed


def test_who_is_not_as_far_is_not_compared(batch: StepBatch) -> None:
    two, one, none = noted(batch, batch), noted(batch), noted()
    assert stray_ranks({0: None, 1: none, 2: one, 3: two}, 3) == []
    assert stray_ranks({0: two}, 1) == []


def test_times_of_the_newest_steps(batch: StepBatch) -> None:
    rank = progress()
    for number in range(1, 301):
        rank.begin_step()
        rank.note_batch(batch)
        assert [note.number for note in rank.latest(5)] == list(range(max(1, number - 5), number))
        rank.end_step(waited_s=number / 1000)
    assert rank.steps == (300, 300)
    assert [note.waited_s for note in rank.latest(2)] == [0.299, 0.3]
    assert all(note.seconds > 0 for note in rank.latest(1000))
    assert rank.note(1) is None  # long ago
