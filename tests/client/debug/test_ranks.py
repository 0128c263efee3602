"""The ranks that /debug/scheduler tells: reading them, their skew, and which failed first."""

from __future__ import annotations

from typing import Any

import pytest

from app.client.debug.documents import read_scheduler
from app.client.debug.ranks import RankReading, first_to_fail, read_ranks, skew_of
from app.client.errors import BadAnswer

_ENTRY: dict[str, Any] = {
    "name": "Worker_TP0\x1b[31m",
    "stage": 0,
    "tensor_rank": 0,
    "pid": 71,
    "node": None,
    "state": "running",
    "num_steps": 12,
    "step_s": 0.010,
    "waited_s": 0.002,
    "weight_bytes": 5,
    "kv_cache_bytes": 6,
    "held_bytes": 7,
}
_SCHEDULER: dict[str, Any] = {
    "num_running": 0,
    "num_waiting": 0,
    "num_waiting_for_grammar": 0,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "num_blocks": 9,
    "num_steps": 0,
    "last_step_age_s": 0.5,
    "last_step": None,
}


def read(*changes: dict[str, Any]) -> tuple[RankReading, ...]:
    return read_ranks([{**_ENTRY, **change} for change in changes])


def test_they_are_read_out_of_the_scheduler_document() -> None:
    (rank,) = read_scheduler({**_SCHEDULER, "ranks": [_ENTRY]}).ranks
    assert rank.name == "Worker_TP0"
    assert rank.own_s == pytest.approx(0.008)
    assert rank.is_running
    assert read_scheduler(_SCHEDULER).ranks == ()  # of an older version, or without ranks
    with pytest.raises(BadAnswer):
        read_scheduler({**_SCHEDULER, "ranks": [{"name": "Worker_TP0"}]})


def test_skew_is_between_the_slowest_and_the_quickest() -> None:
    ranks = read({}, {"name": "Worker_TP1", "waited_s": 0.0}, {"waited_s": 0.005})
    skew = skew_of(ranks)
    assert skew is not None
    assert skew.slowest.name == "Worker_TP1"
    assert skew.seconds == pytest.approx(0.005)
    assert skew.share == pytest.approx(0.5)


def test_there_is_no_skew_before_a_step_or_of_one_rank() -> None:
    assert skew_of(read({}, {"step_s": None, "waited_s": None})) is None


def test_who_is_named_first_has_failed_first() -> None:
    ranks = read(*({"name": f"Worker_TP{number}"} for number in range(12)))
    cause = "Worker proc Worker_TP11 disagrees with Worker_TP0: in step 2"
    assert first_to_fail(ranks, cause) is ranks[11]
    assert first_to_fail(ranks, "the server cannot be reached") is None
    ranks = read({"name": "Worker_TP0"}, {"name": "Worker_TP1", "state": "stopped"})
    assert first_to_fail(ranks, "") is ranks[1]
