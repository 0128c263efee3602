"""What /debug tells, against the allocator and the scheduler themselves, after every step."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from app.client.debug.documents import (
    BlockMap,
    BlockState,
    read_block_map,
    read_requests,
    read_scheduler,
)
from engine.sched.request import RequestStatus
from engine.sched.scheduler import Scheduler
from engine.sched.scheduler_output import SchedulerOutput
from engine.sched.snapshot import (
    MAX_LISTED_REQUESTS,
    MAX_MAPPED_BLOCKS,
    Limit,
    StepHistory,
    StepRecord,
    blocks_document,
    requests_document,
    scheduler_document,
)
from tests.sched.random_workloads import LIMITS, REQUESTS
from tests.sched.workload import Run, make_request, make_scheduler


def read_back(scheduler: Scheduler) -> BlockMap:
    return read_block_map(json.loads(json.dumps(blocks_document(scheduler))))


def check_map(scheduler: Scheduler) -> BlockMap:
    """The map that a client draws against ref counts, hashes and free queue of the pool."""
    pool, found = scheduler.kv_cache_manager.block_pool, read_back(scheduler)
    assert found.num_cached is not None
    assert found.num_free is not None
    assert found.num_used + found.num_cached + found.num_free == found.num_blocks
    assert found.num_blocks == pool.num_blocks - 1
    assert found.num_used == found.num_blocks - pool.num_free_blocks
    assert found.free_queue == tuple(pool.free_queue.block_ids())
    uses = Counter(block for held in found.owners.values() for block in held)
    for block in pool.blocks[1:]:
        assert uses[block.block_id] == block.ref_cnt
        expected = min(block.ref_cnt, 2) + 1 if block.ref_cnt else int(block.block_hash is not None)
        assert found.states[block.block_id - found.first_block] == expected
    # A request's last block is the only one with room: blocks are handed out as they are needed.
    num_tables = sum(
        len(scheduler.kv_cache_manager.get_block_ids(request.request_id))
        for request in scheduler.running
    )
    assert found.num_unused_slots is not None
    assert 0 <= found.num_unused_slots <= num_tables * (scheduler.block_size - 1)
    drawn = Counter(found.states)
    assert drawn[BlockState.FREE] == found.num_free
    assert drawn[BlockState.CACHED] == found.num_cached
    assert drawn[BlockState.USED] + drawn[BlockState.SHARED] == found.num_used
    return found


class Watched(Run):
    """Records every step between planning and its results, as EngineCore does."""

    def __init__(self, scheduler: Scheduler, **options: Any) -> None:
        super().__init__(scheduler, **options)
        self.history = StepHistory()

    def _apply(self, planned: SchedulerOutput) -> None:
        super()._apply(planned)
        if not planned.total_num_scheduled_tokens:
            return
        self.history.record(self.scheduler, planned)
        step, config = self.history.last_step, self.scheduler.config
        assert step is not None
        total = planned.total_num_scheduled_tokens
        assert step.num_decode_tokens + step.num_prefill_tokens == total
        assert 0 <= step.num_decode_tokens <= step.num_requests <= config.max_num_seqs
        if step.limit is Limit.MAX_NUM_SEQS:
            assert step.num_running == config.max_num_seqs
        elif step.limit is Limit.TOKEN_BUDGET:
            assert total == config.max_num_batched_tokens
        elif step.limit is Limit.NONE:
            assert step.num_waiting == step.num_preempted == 0


@settings(max_examples=60, deadline=None)
@given(REQUESTS, LIMITS, st.lists(st.integers(0, 30), max_size=3))
def test_the_map_equals_the_allocator_after_every_step(
    work: list[tuple[int, int, int, int, int]], limits: dict[str, Any], aborts: list[int]
) -> None:
    groups = limits["groups"]
    num_blocks = limits.pop("blocks_per_group") * len(groups)
    scheduler = make_scheduler(block_size=4, max_model_len=68, num_blocks=num_blocks, **limits)
    run = Watched(scheduler, groups=groups)
    for number, (prompt, output, arrival, family, priority) in enumerate(work):
        scheduler.add_request(
            make_request(
                scheduler,
                str(number),
                [family] * prompt,
                output,
                arrival=arrival,
                priority=priority,
            )
        )
    steps = 0
    while scheduler.has_unfinished_requests():
        if steps in aborts:
            victim = sorted(scheduler.requests)[steps % len(scheduler.requests)]
            scheduler.finish_requests([victim], RequestStatus.FINISHED_ABORTED)
            check_map(scheduler)
        else:
            run.step()
            check_map(scheduler)
        steps += 1
    assert read_back(scheduler).num_used == 0


def test_the_map_holds_over_ten_thousand_steps() -> None:
    """One long life with preemptions, shared prefixes, evictions and aborts."""
    random = Random(7)
    scheduler = make_scheduler(num_blocks=40, tokens=24, seqs=5, caching=True, max_model_len=100)
    run = Watched(scheduler)
    seen: Counter[BlockState] = Counter()
    limits: Counter[Limit] = Counter()
    number = 0
    while run.history.num_steps < 10_000:
        while len(scheduler.requests) < random.randint(1, 9):
            prompt = [random.randint(0, 2)] * random.randint(1, 50)
            number += 1
            scheduler.add_request(
                make_request(scheduler, str(number), prompt, random.randint(1, 40))
            )
        if random.random() < 0.01:
            victim = random.choice(sorted(scheduler.requests))
            scheduler.finish_requests([victim], RequestStatus.FINISHED_ABORTED)
        run.step()
        seen.update(set(map(BlockState, check_map(scheduler).states)))
        if run.history.last_step:
            limits[run.history.last_step.limit] += 1
    assert set(seen) == set(BlockState)
    assert set(limits) == {
        Limit.NONE,
        Limit.KV_MEMORY,
        Limit.MAX_NUM_SEQS,
        Limit.TOKEN_BUDGET,
    }


# ---- one case each ------------------------------------------------------------------------------


def planned_step(scheduler: Scheduler, *requests: tuple[str, int, int]) -> Any:
    for request_id, prompt, max_tokens in requests:
        scheduler.add_request(make_request(scheduler, request_id, prompt, max_tokens))
    run = Watched(scheduler)
    run.step()
    return run


def last(run: Any) -> StepRecord:
    step = run.history.last_step
    assert isinstance(step, StepRecord)
    return step


def test_nothing_binds_an_easy_step() -> None:
    run = planned_step(make_scheduler(), ("a", 9, 5), ("b", 4, 5))
    assert last(run).limit is Limit.NONE
    assert (last(run).num_prefill_tokens, last(run).num_decode_tokens) == (13, 0)
    run.step()
    assert (last(run).num_prefill_tokens, last(run).num_decode_tokens) == (0, 2)


def test_seats_bind() -> None:
    run = planned_step(make_scheduler(seqs=1), ("a", 9, 5), ("b", 4, 5))
    assert last(run).limit is Limit.MAX_NUM_SEQS
    assert last(run).num_waiting == 1


def test_the_budget_binds_even_without_a_queue() -> None:
    run = planned_step(make_scheduler(tokens=8), ("a", 20, 5))
    assert last(run).limit is Limit.TOKEN_BUDGET
    assert last(run).num_prefill_tokens == 8


def test_prompts_take_turns_while_seats_and_budget_are_left() -> None:
    run = planned_step(make_scheduler(joint=8), ("a", 9, 5), ("b", 4, 5), ("c", 4, 5))
    assert (last(run).limit, last(run).num_waiting) == (Limit.PROMPT_TURNS, 2)
    run.step()
    assert (last(run).limit, last(run).num_waiting) == (Limit.NONE, 0)


def test_memory_binds_at_admission_and_when_someone_is_preempted() -> None:
    scheduler = make_scheduler(num_blocks=9, block_size=4)  # 8 usable blocks
    run = planned_step(scheduler, ("a", 15, 17), ("b", 13, 17), ("c", 8, 1))
    assert last(run).limit is Limit.KV_MEMORY
    assert (last(run).next_waiting_blocks, last(run).num_free_blocks) == (2, 0)
    while not last(run).num_preempted:
        run.step()
    assert last(run).limit is Limit.KV_MEMORY


def test_requests_are_listed_in_the_order_of_the_queue() -> None:
    scheduler = make_scheduler(seqs=1, caching=True)
    run = planned_step(scheduler, ("a", 9, 5), ("b", 4, 7), ("c", 30, 5))
    run.step()
    document = json.loads(json.dumps(requests_document(scheduler, now_s=12.5)))
    found, num_not_listed = read_requests(document)
    assert num_not_listed == 0
    assert [(r.id, r.state, r.place) for r in found] == [
        ("a", "running", None),
        ("b", "waiting", 1),
        ("c", "waiting", 2),
    ]
    first = found[0]
    assert (first.age_s, first.prompt_tokens, first.prompt_tokens_done) == (12.5, 9, 9)
    assert (first.output_tokens, first.max_tokens, first.blocks) == (2, 5, 3)
    assert first.cached_tokens == 0
    assert first.first_token_s is not None
    assert found[1].first_token_s is None
    assert found[1].cached_tokens is None  # not known before it is admitted
    assert "token_ids" not in str(document)


def test_a_long_queue_is_cut_and_says_so() -> None:
    scheduler = make_scheduler(seqs=1)
    for number in range(MAX_LISTED_REQUESTS + 3):
        scheduler.add_request(make_request(scheduler, str(number), 3, 1))
    found, num_not_listed = read_requests(requests_document(scheduler, 0.0))
    assert (len(found), num_not_listed) == (MAX_LISTED_REQUESTS, 3)


def test_a_huge_pool_is_counted_but_not_mapped() -> None:
    scheduler = make_scheduler(num_blocks=MAX_MAPPED_BLOCKS + 2)
    planned_step(scheduler, ("a", 9, 5))
    found = read_back(scheduler)
    assert (found.num_used, found.num_cached, found.states) == (3, None, b"")


def test_scheduler_document_reads_back() -> None:
    scheduler = make_scheduler(seqs=1)
    history = StepHistory()
    before = read_scheduler(json.loads(json.dumps(scheduler_document(scheduler, history))))
    assert (before.step, before.num_steps, before.num_unfinished) == (None, 0, 0)
    run = planned_step(scheduler, ("a", 9, 5), ("b", 4, 5))
    after = read_scheduler(json.loads(json.dumps(scheduler_document(scheduler, run.history))))
    assert after.step is not None
    assert (after.step.limit, after.step.num_prefill_tokens) == ("max_num_seqs", 9)
    assert (after.num_running, after.num_waiting, after.max_num_seqs) == (1, 1, 1)
