"""The walk through the 13 hops: every number out of the engine's answer, or said to be missing."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from app.client.debug.trace import NOT_MEASURED, Hop, read_trace, walk
from app.client.errors import BadAnswer
from app.client.metrics.slots import read_slots
from tests.client.debug.trace_document import DOCUMENT, STEP


def hops(**changes: Any) -> dict[int, Hop]:
    document = copy.deepcopy(DOCUMENT) | changes
    return {hop.number: hop for hop in walk(read_trace(document))}


def ms(value_s: float | None) -> float | None:
    return None if value_s is None else round(value_s * 1000, 3)


def test_all_hops_of_a_finished_request() -> None:
    found = hops()
    assert list(found) == list(range(1, 14))
    took = {number: ms(hop.duration_s) for number, hop in found.items()}
    # Hop 5 ends when EngineCore has the message, though the send call returned later.
    assert took == {
        1: 1.0,
        2: 2.0,
        3: 0.5,
        4: 2.0,
        5: 0.5,
        6: 0.0,
        7: 1.0,
        8: 0.4,
        9: 45.0,
        10: 4.0,
        11: 1.0,
        12: 1.0,
        13: 2.0,
    }
    later = {number: ms(hop.later_mean_s) for number, hop in found.items() if hop.later_mean_s}
    assert later == {7: 1.0, 8: 0.3, 9: 10.0, 10: 1.0, 11: 1.0, 12: 2.0}
    assert found[7].note == "after 4.00 ms in the queue"
    assert found[8].note == "part of hop 7"
    assert "32 of its tokens, 3 requests" in found[9].note
    assert found[12].note == "after 1.00 ms on the way back"


def test_an_engine_that_does_not_time_its_blocks() -> None:
    step = {name: value for name, value in STEP.items() if name != "blocks_s"}
    found = hops(core={**DOCUMENT["core"], "first_step": step})[8]
    assert (found.duration_s, found.later_mean_s, found.note) == (None, None, NOT_MEASURED)


def test_escapes_in_the_answer_are_taken_out() -> None:
    assert read_trace(DOCUMENT).client == "127.0.0.1:5"


def test_request_that_still_waits() -> None:
    core = {**DOCUMENT["core"], "num_steps": 0, "first_step": None, "last_step": None}
    marks = {k: v for k, v in DOCUMENT["marks"].items() if not k.startswith("first")}
    found = hops(core=core, marks=marks, num_outputs=0, num_events=0)
    assert all("still in the queue" in found[number].note for number in range(7, 12))
    assert all("no token yet" in found[number].note for number in (12, 13))
    assert all(found[number].duration_s is None for number in range(7, 14))


def test_what_the_engine_has_forgotten() -> None:
    found = hops(core=None)
    assert all("no longer kept" in found[number].note for number in range(6, 12))
    assert ms(found[5].duration_s) == 1.5


def test_raw_prompt_and_answer_in_one_piece() -> None:
    marks = {k: v for k, v in DOCUMENT["marks"].items() if k not in ("rendered", "first_event")}
    found = hops(marks=marks, num_events=0)
    assert found[2].note == "a raw prompt has no template"
    assert ms(found[4].duration_s) == 4.0
    assert "not streamed" in found[13].note


def test_without_a_trace_everything_says_why() -> None:
    found = walk(None, "no endpoint")
    assert {hop.note for hop in found} == {"not measured: no endpoint"}
    assert {hop.duration_s for hop in found} == {None}
    assert len(found) == 13


@pytest.mark.parametrize("missing", ["core", "marks", "num_outputs", "id"])
def test_unknown_answers_are_refused(missing: str) -> None:
    document = {key: value for key, value in DOCUMENT.items() if key != missing}
    with pytest.raises(BadAnswer, match="form that is not known"):
        read_trace(document)


# ---- llama-server's slots ------------------------------------------------------------------------

BUSY = {
    "id": 1,
    "n_ctx": 1024,
    "is_processing": True,
    "id_task": 7,
    "n_prompt_tokens": 53,
    "n_prompt_tokens_processed": 3,
    "n_prompt_tokens_cache": 1,
    "params": {"n_predict": 300},
    "next_token": [{"n_remain": 251, "n_decoded": 49}],
}


def test_slots_of_a_real_build() -> None:
    free, busy = read_slots([{"id": 0, "n_ctx": 1024, "is_processing": False}, BUSY])
    assert (free.number, free.is_busy, free.output_tokens) == (0, False, None)
    assert (busy.task, busy.prompt_tokens, busy.prompt_tokens_done) == (7, 4, 4)
    assert (busy.output_tokens, busy.max_tokens, busy.cached_tokens) == (49, 300, 1)
    assert busy.tokens_held == 53


def test_slots_of_an_older_build_and_no_limit() -> None:
    old = {"id": 0, "n_ctx": 64, "is_processing": True, "next_token": {"n_decoded": 5}}
    (slot,) = read_slots([{**old, "params": {"n_predict": -1}}])
    assert (slot.output_tokens, slot.prompt_tokens, slot.max_tokens) == (5, None, None)
    assert slot.tokens_held is None


@pytest.mark.parametrize("document", [{"error": "x"}, [{}], ["x"], 5])
def test_slots_of_something_else(document: object) -> None:
    with pytest.raises(BadAnswer):
        read_slots(document)
