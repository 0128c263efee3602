"""The lesson's worked examples, run through the classes that the server runs."""

from __future__ import annotations

import pytest

from engine.sched.request import Request, RequestStatus
from tests.sched.workload import Run, make_request, make_scheduler


def test_example_2_a_preempted_request_runs_again_and_ends_by_length() -> None:
    # Five usable blocks of 4 tokens: two requests of 8 + 6 tokens cannot both grow to the end.
    scheduler = make_scheduler(num_blocks=6, block_size=4, reserve=False)
    first = make_request(scheduler, "first", 8, 6)
    second = make_request(scheduler, "second", 8, 6)
    scheduler.add_request(first)
    scheduler.add_request(second)
    run = Run(scheduler)
    life = [second.status]
    while scheduler.has_unfinished_requests():
        run.step()
        if second.status != life[-1]:
            life.append(second.status)
    assert [status.name for status in life] == [
        "WAITING",
        "RUNNING",
        "PREEMPTED",
        "RUNNING",
        "FINISHED_LENGTH_CAPPED",
    ]
    assert second.num_preemptions == 1
    assert life[-1].is_finished
    assert str(life[-1].finish_reason) == "length"
    assert str(RequestStatus.FINISHED_STOPPED.finish_reason) == "stop"
    assert str(RequestStatus.FINISHED_ABORTED.finish_reason) == "abort"


def test_example_3_block_tables_slots_waste_and_reuse_order() -> None:
    scheduler = make_scheduler(num_blocks=10, block_size=4)
    manager = scheduler.kv_cache_manager

    def grow(request: Request, count: int) -> bool:
        if manager.allocate_slots(request, count) is None:
            return False
        request.num_computed_tokens += count
        return True

    a = make_request(scheduler, "A", 13, 8)
    b = make_request(scheduler, "B", 8, 8)
    c = make_request(scheduler, "C", 20, 8)
    d = make_request(scheduler, "D", 12, 8)
    assert grow(a, 10)
    assert grow(b, 5)
    assert manager.get_block_ids("A")[0] == [1, 2, 3]
    assert manager.get_block_ids("B")[0] == [4, 5]
    assert manager.block_pool.free_queue.block_ids() == [6, 7, 8, 9]
    for _ in range(3):
        assert grow(a, 1)
        assert grow(b, 1)
    assert manager.get_block_ids("A")[0] == [1, 2, 3, 6]
    assert manager.get_block_ids("B")[0] == [4, 5]
    assert manager.block_pool.free_queue.block_ids() == [7, 8, 9]

    def slot(request_id: str, position: int) -> int:
        return manager.get_block_ids(request_id)[0][position // 4] * 4 + position % 4

    assert (slot("A", 9), slot("A", 12), slot("B", 7)) == (13, 24, 23)
    waste = sum(
        len(manager.get_block_ids(request.request_id)[0]) * 4 - request.num_computed_tokens
        for request in (a, b)
    )
    assert waste == 3
    manager.free(a)
    assert manager.block_pool.free_queue.block_ids() == [7, 8, 9, 1, 2, 3, 6]
    assert grow(c, 20)
    assert not grow(d, 12)
    assert manager.get_block_ids("C")[0] == [7, 8, 9, 1, 2]
    assert manager.block_pool.free_queue.block_ids() == [3, 6]


@pytest.mark.parametrize(
    ("is_static", "expected", "mean_latency"),
    [
        (True, "ABC ABC AC A A A A A DEF DE E E E E", 6.67),
        (False, "ABC ABC ACD ADE AEF AE AE AE E", 4.17),
    ],
)
def test_example_4_static_and_continuous_batching(
    is_static: bool, expected: str, mean_latency: float
) -> None:
    work = [("A", 0, 8), ("B", 0, 2), ("C", 0, 3), ("D", 1, 2), ("E", 2, 6), ("F", 3, 1)]
    scheduler = make_scheduler(seqs=3)
    run = Run(scheduler)
    arrivals = list(work)
    timeline, latency, step = [], 0, 0
    while arrivals or scheduler.has_unfinished_requests():
        # A static batcher hands over three requests and then none until all of them are done.
        is_open = not is_static or not scheduler.has_unfinished_requests()
        while is_open and arrivals and arrivals[0][1] <= step:
            if is_static and len(scheduler.waiting) == 3:
                break
            name, _, length = arrivals.pop(0)
            scheduler.add_request(make_request(scheduler, name, 1, length))
        planned, outputs = run.step()
        step += 1
        timeline.append("".join(planned.num_scheduled_tokens))
        for output in outputs:
            if output.finish_reason is not None:
                latency += step - next(w[1] for w in work if w[0] == output.request_id)
    assert " ".join(timeline) == expected
    assert sum(map(len, timeline)) == 22
    assert round(latency / 6, 2) == mean_latency


def test_example_5_the_four_steps_of_the_token_budget() -> None:
    scheduler = make_scheduler(tokens=8, seqs=4)
    run = Run(scheduler)
    scheduler.add_request(make_request(scheduler, "A", 5, 3))
    scheduler.add_request(make_request(scheduler, "B", 13, 2))
    lines = []
    for step in range(4):
        if step == 1:
            scheduler.add_request(make_request(scheduler, "C", 3, 2))
        planned, outputs = run.step()
        sampled = {output.request_id for output in outputs}
        parts = [
            f" {name}:{count}{'+tok' if name in sampled else ''}"
            for name, count in planned.num_scheduled_tokens.items()
        ]
        done = [output.request_id for output in outputs if output.finish_reason is not None]
        lines.append(
            f"step {step} used {planned.total_num_scheduled_tokens}/8:{''.join(parts)}"
            + (f"  finished [{', '.join(done)}]" if done else "")
        )
    assert lines == [
        "step 0 used 8/8: A:5+tok B:3",
        "step 1 used 8/8: A:1+tok B:7",
        "step 2 used 7/8: A:1+tok B:3+tok C:3+tok  finished [A]",
        "step 3 used 2/8: B:1+tok C:1+tok  finished [B, C]",
    ]
    assert not scheduler.has_unfinished_requests()
