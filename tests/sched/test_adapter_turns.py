"""LoRA adapters in turn: a busy one fills steps, and keeps nobody out for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.lora_adapters import LoraRequest
from engine.sched.adapter_turns import MOST_PASSES
from engine.sched.request import RequestStatus
from engine.sched.scheduler import Scheduler
from tests.sched.workload import Run, make_request, make_scheduler


def add(scheduler: Scheduler, name: str, adapter: int, max_tokens: int = 4) -> None:
    lora = LoraRequest(f"l{adapter}", adapter, f"/l{adapter}") if adapter else None
    scheduler.add_request(make_request(scheduler, name, 4, max_tokens, lora=lora))


@pytest.mark.parametrize("num_adapters", [2, 3])
def test_an_adapter_that_is_always_busy_does_not_starve_the_others(num_adapters: int) -> None:
    run = Run(make_scheduler(seqs=4, max_loras=num_adapters - 1))
    for adapter in range(1, num_adapters):
        add(run.scheduler, f"busy{adapter}", adapter)
    run.step()
    add(run.scheduler, "other", num_adapters)
    for number in range(200):
        for adapter in range(1, num_adapters):
            add(run.scheduler, f"a{number}.{adapter}", adapter)
        run.step()
        if "other" in run.reasons:
            break
    assert run.reasons["other"] == "length"
    assert number < 4 * MOST_PASSES
    run.finish()


def test_requests_without_an_adapter_wait_for_nobodys_turn() -> None:
    run = Run(make_scheduler(seqs=64, max_loras=1))
    for number in range(MOST_PASSES + 2):
        add(run.scheduler, f"a{number}", 1, 40)
        run.step()
        if number == 0:
            add(run.scheduler, "other", 2)
    add(run.scheduler, "plain", 0)
    add(run.scheduler, "late", 1)
    run.step()
    status = {name: one.status for name, one in run.scheduler.requests.items()}
    assert status["plain"] == RequestStatus.RUNNING
    assert status["other"] == status["late"] == RequestStatus.WAITING
    run.finish()


arrivals = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=6), min_size=1, max_size=60
)


@given(arrivals=arrivals, max_loras=st.integers(1, 2), seqs=st.integers(1, 8))
def test_no_request_is_passed_by_more_than_so_many(
    arrivals: list[list[tuple[int, int]]], max_loras: int, seqs: int
) -> None:
    run = Run(make_scheduler(seqs=seqs, max_loras=max_loras))
    admitted: list[tuple[int, int]] = []  # place and adapter
    for number, requests in enumerate(arrivals):
        for index, (adapter, max_tokens) in enumerate(requests):
            add(run.scheduler, f"{number}.{index}", adapter, max_tokens)
        known = dict(run.scheduler.requests)
        planned, _ = run.step()
        admitted += [(known[one.req_id].place, one.lora_id) for one in planned.new_requests]
        running = {one.lora_id for one in run.scheduler.running} - {0}
        assert len(running) <= max_loras
    while run.scheduler.requests:
        known = dict(run.scheduler.requests)
        planned, _ = run.step()
        admitted += [(known[one.req_id].place, one.lora_id) for one in planned.new_requests]
    assert len(admitted) == sum(map(len, arrivals))
    for turn, (place, adapter) in enumerate(admitted):
        passes = [one for one in admitted[:turn] if one[0] > place and one[1]]
        assert len(passes) <= MOST_PASSES if adapter else not passes
