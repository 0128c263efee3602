"""Requests that wait for their grammar, follow it, and end with it; the grammar is scripted."""

from __future__ import annotations

import pytest

from engine.sched.request import Request, RequestStatus
from engine.sched.scheduler import Scheduler
from engine.sched.scheduler_output import ModelRunnerOutput
from tests.sched.workload import Run, ScriptedGrammar, make_request, make_scheduler

GRAMMAR_STATUS = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR


def add(
    scheduler: Scheduler,
    name: str,
    grammar: ScriptedGrammar | None,
    *,
    prompt: int = 4,
    max_tokens: int = 20,
    arrival: float = 0.0,
) -> Request:
    request = make_request(scheduler, name, prompt, max_tokens, arrival=arrival)
    request.grammar = grammar
    scheduler.add_request(request)
    return request


def test_the_statuses_stand_in_vllms_order() -> None:
    assert RequestStatus.WAITING < GRAMMAR_STATUS < RequestStatus.RUNNING < RequestStatus.PREEMPTED
    assert not GRAMMAR_STATUS.is_finished
    assert [status for status in RequestStatus if status.is_finished] == [
        status for status in RequestStatus if status.name.startswith("FINISHED")
    ]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_an_uncompiled_grammar_holds_up_its_own_request_only(policy: str) -> None:
    scheduler = make_scheduler(policy=policy)
    run = Run(scheduler)
    first, second = ScriptedGrammar(is_ready=False), ScriptedGrammar(is_ready=False)
    slow = add(scheduler, "slow", first, arrival=1)
    slower = add(scheduler, "slower", second, arrival=2)
    assert scheduler.is_waiting_for_grammars()
    add(scheduler, "free", None, arrival=3)
    assert not scheduler.is_waiting_for_grammars()
    assert list(run.step()[0].num_scheduled_tokens) == ["free"]
    assert (slow.status, scheduler.make_stats().num_waiting_reqs) == (GRAMMAR_STATUS, 2)
    add(scheduler, "newer", None, arrival=4)
    first.is_ready = second.is_ready = True
    # What waited for its grammar comes before what arrived later, in its own order.
    assert list(run.step()[0].num_scheduled_tokens) == ["free", "slow", "slower", "newer"]
    assert slower.status == RequestStatus.RUNNING


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_compiled_grammar_never_passes_those_who_came_before(policy: str) -> None:
    scheduler = make_scheduler(policy=policy, seqs=1)
    grammar = ScriptedGrammar(is_ready=False)
    for number, name in enumerate(("runs", "first", "structured", "last")):
        own = grammar if name == "structured" else None
        add(scheduler, name, own, max_tokens=2, arrival=float(number))
    run, order = Run(scheduler), list[str]()
    while scheduler.has_unfinished_requests():
        order += [name for name in run.step()[0].num_scheduled_tokens if name not in order]
        grammar.is_ready = True
    assert order == ["runs", "first", "structured", "last"]


def test_plain_requests_are_served_beside_an_endless_stream_of_structured_ones() -> None:
    scheduler = make_scheduler(seqs=2)
    run, num_structured = Run(scheduler), 0
    for number in range(4):
        add(scheduler, f"plain-{number}", None, max_tokens=3)
    for _ in range(40):
        while sum(name.startswith("s") for name in scheduler.requests) < 6:
            num_structured += 1
            add(scheduler, f"s-{num_structured}", ScriptedGrammar(length=3))
        run.step()
    assert {f"plain-{number}" for number in range(4)} <= set(run.reasons)
    assert len(run.reasons) > 20


def test_only_requests_that_get_a_token_need_a_row() -> None:
    scheduler = make_scheduler(tokens=10)
    add(scheduler, "long", ScriptedGrammar(), prompt=25)
    add(scheduler, "free", None)
    rows = []
    for _ in range(5):
        planned = scheduler.schedule()
        rows.append(list(scheduler.sampling_grammars(planned)))
        sampled = [
            [1] if scheduler.requests[name].num_computed_tokens >= 25 else []
            for name in planned.num_scheduled_tokens
        ]
        result = ModelRunnerOutput(list(planned.num_scheduled_tokens), sampled)
        scheduler.update_from_output(planned, result)
    # 25 prompt tokens in chunks of 10; "free" never needs a row.
    assert rows == [[], [], ["long"], ["long"], ["long"]]


def test_the_end_of_the_grammar_ends_the_request() -> None:
    scheduler = make_scheduler()
    run = Run(scheduler)
    add(scheduler, "ends", ScriptedGrammar(length=3))
    add(scheduler, "at the limit", ScriptedGrammar(length=5), max_tokens=5)
    add(scheduler, "cut", ScriptedGrammar(length=6), max_tokens=5)
    run.finish()
    assert {name: len(tokens) for name, tokens in run.outputs.items()} == {
        "ends": 3,
        "at the limit": 5,
        "cut": 5,
    }
    assert run.reasons == {"ends": "stop", "at the limit": "stop", "cut": "length"}


def test_a_refused_token_ends_the_request_as_error_and_frees_its_blocks() -> None:
    scheduler = make_scheduler()
    run = Run(scheduler)
    add(scheduler, "bad", ScriptedGrammar(refuse_after=2))
    add(scheduler, "good", None)
    run.finish()
    assert run.reasons == {"bad": "error", "good": "length"}
    assert len(run.outputs["good"]) == 20
    assert scheduler.make_stats().kv_cache_usage == 0


def test_an_unusable_grammar_is_answered_without_running() -> None:
    scheduler = make_scheduler()
    add(scheduler, "bad", ScriptedGrammar(error="no such rule"))
    assert scheduler.schedule().total_num_scheduled_tokens == 0
    (output,) = scheduler.take_rejected()
    assert (output.request_id, str(output.finish_reason)) == ("bad", "error")
    assert scheduler.take_rejected() == []
    assert not scheduler.has_unfinished_requests()


def test_an_abort_reaches_a_request_that_waits_for_its_grammar() -> None:
    scheduler = make_scheduler()
    grammar = ScriptedGrammar(is_ready=False)
    add(scheduler, "gone", grammar)
    assert scheduler.finish_requests(["gone"], RequestStatus.FINISHED_ABORTED)
    grammar.is_ready = True
    assert not scheduler.has_unfinished_requests()
    assert scheduler.schedule().total_num_scheduled_tokens == 0
    assert not scheduler.is_waiting_for_grammars()


def test_a_preempted_request_goes_on_where_its_grammar_stands() -> None:
    scheduler = make_scheduler(num_blocks=8, reserve=False)
    run = Run(scheduler)
    grammars = {name: ScriptedGrammar(length=12) for name in ("a", "b", "c")}
    requests = [add(scheduler, name, grammar) for name, grammar in grammars.items()]
    run.finish()
    assert sum(request.num_preemptions for request in requests) > 0
    assert [grammar.num_accepted for grammar in grammars.values()] == [12, 12, 12]
    assert all(len(tokens) == 12 for tokens in run.outputs.values())
