"""Prompts that arrive together are computed one after the other where that costs nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampling_params import SamplingParams
from engine.sched.joint_prefill import JointPrefill
from engine.sched.scheduler import Scheduler
from engine.speculative_config import SpeculativeConfig
from tests.sched.random_workloads import LIMITS, REQUESTS
from tests.sched.workload import Run, check_integrity, make_request, make_scheduler


def add(scheduler: Scheduler, *prompts: int, outputs: int = 50, first: int = 0) -> None:
    for number, prompt in enumerate(prompts, start=first):
        scheduler.add_request(make_request(scheduler, str(number), prompt, outputs))


def test_a_burst_is_computed_in_the_order_of_arrival_and_the_decodes_wait() -> None:
    scheduler = make_scheduler(joint=64)
    run = Run(scheduler)
    add(scheduler, 60, 60, 60)
    found = [(run.step()[0].num_scheduled_tokens, scheduler.num_taking_turns) for _ in range(4)]
    assert found == [
        ({"0": 60}, 2),
        ({"1": 60}, 1),
        ({"2": 60}, 0),
        ({"0": 1, "1": 1, "2": 1}, 0),
    ]


def test_the_last_prompts_and_one_alone_take_the_decodes_along() -> None:
    scheduler = make_scheduler(joint=128)
    run = Run(scheduler)
    add(scheduler, 60)
    run.step()
    add(scheduler, 60, 60, first=1)
    assert run.step()[0].num_scheduled_tokens == {"0": 1, "1": 60, "2": 60}


def test_decodes_wait_for_the_tokens_of_one_step_and_no_more() -> None:
    scheduler = make_scheduler(joint=128, tokens=512)
    run = Run(scheduler)
    add(scheduler, *[100] * 14)
    found = [run.step()[0].num_scheduled_tokens for _ in range(15)]
    alone = [[number] for number in range(14)]
    after_six = [*range(8)]  # the first step had no decodes that could wait
    assert [[int(key) for key in step] for step in found] == [
        *alone[:7],
        after_six,
        *alone[8:],
        [*range(14)],
    ]


def test_without_the_limit_all_are_computed_at_once() -> None:
    scheduler = make_scheduler()
    add(scheduler, 60, 60, 60)
    assert Run(scheduler).step()[0].num_scheduled_tokens == {"0": 60, "1": 60, "2": 60}


def test_short_prompts_go_together_and_nobody_overtakes() -> None:
    scheduler = make_scheduler(joint=64)
    run = Run(scheduler)
    add(scheduler, 20, 30, 15, 5, outputs=1)
    assert run.step()[0].num_scheduled_tokens == {"0": 20, "1": 30}
    assert run.step()[0].num_scheduled_tokens == {"2": 15, "3": 5}


def test_one_prompt_alone_has_the_whole_budget_and_holds_up_the_next() -> None:
    scheduler = make_scheduler(tokens=200, joint=64)
    run = Run(scheduler)
    add(scheduler, 10, 350, 10, outputs=1)
    found = [run.step()[0].num_scheduled_tokens for _ in range(4)]
    assert found == [{"0": 10}, {"1": 200}, {"1": 150}, {"2": 10}]


@pytest.mark.parametrize("how", ["threshold", "logprobs"])
def test_nobody_waits_for_a_prompt_that_has_a_share_of_many_steps(how: str) -> None:
    scheduler = make_scheduler(joint=64, threshold=32 * (how == "threshold"))
    run = Run(scheduler)
    params = SamplingParams(max_tokens=1, prompt_logprobs=5 if how == "logprobs" else None)
    scheduler.add_request(make_request(scheduler, "long", 100, 1, params=params))
    add(scheduler, 30, 30, 30, outputs=1)
    found = [run.step()[0].num_scheduled_tokens for _ in range(4)]
    assert found == [
        {"long": 32, "0": 30, "1": 30},
        {"long": 32, "2": 30},
        {"long": 32},
        {"long": 4},
    ]


def test_a_cut_prompt_that_does_not_fit_keeps_its_place() -> None:
    scheduler = make_scheduler(joint=8, threshold=8)
    run = Run(scheduler)
    add(scheduler, 7, 12, 3, outputs=1)
    found = [run.step()[0].num_scheduled_tokens for _ in range(3)]
    assert found == [{"0": 7}, {"1": 8, "2": 3}, {"1": 4}]


def test_decodes_go_on_where_no_prompt_can_be_computed() -> None:
    scheduler = make_scheduler(joint=8, block_size=4, num_blocks=8, max_model_len=32)
    run = Run(scheduler)
    add(scheduler, 8, 8, 20, outputs=4)
    found = [run.step()[0].num_scheduled_tokens for _ in range(3)]
    assert found == [{"0": 8}, {"1": 8}, {"0": 1, "1": 1}]
    assert scheduler.num_taking_turns == 0


def test_what_the_prefix_cache_has_takes_no_room() -> None:
    scheduler = make_scheduler(joint=64, caching=True)
    run = Run(scheduler)
    prompt = list(range(61))
    scheduler.add_request(make_request(scheduler, "first", prompt, 1))
    run.finish()
    for name in "abc":
        scheduler.add_request(make_request(scheduler, name, [*prompt[:60], ord(name)], 1))
    add(scheduler, 60)
    assert run.step()[0].num_scheduled_tokens == {"a": 1, "b": 1, "c": 1, "0": 60}


def test_a_victim_leaves_the_room_that_it_had() -> None:
    prefill = JointPrefill(32, 100)
    prefill.note(28)
    prefill.note(3, num_drafted=2)
    prefill.take_back(28, 0)
    assert prefill.has_room(8)
    prefill.note(8)
    assert prefill.has_room(24)
    assert not prefill.has_room(25)


@settings(max_examples=150, deadline=None)
@given(REQUESTS, LIMITS, st.integers(1, 64), st.booleans())
def test_any_limit_keeps_the_order_and_the_tokens(
    work: list[tuple[int, int, int, int, int]],
    limits: dict[str, Any],
    joint: int,
    has_drafts: bool,
) -> None:
    """And with one that nothing reaches, every step is what it is without."""
    limits = {**limits, "joint": joint}
    plain = planned(work, {**limits, "joint": None}, has_drafts=False)
    assert planned(work, {**limits, "joint": 1 << 20}, has_drafts=False) == plain
    planned(work, limits, has_drafts=has_drafts)


def planned(
    work: list[tuple[int, int, int, int, int]], limits: dict[str, Any], *, has_drafts: bool
) -> list[dict[str, int]]:
    """Tokens of each step, which is checked."""
    limits = dict(limits)
    groups, joint = limits["groups"], limits["joint"]
    num_blocks = limits.pop("blocks_per_group") * len(groups)
    speculative = SpeculativeConfig() if has_drafts else None
    scheduler = make_scheduler(
        block_size=4, max_model_len=68, num_blocks=num_blocks, speculative=speculative, **limits
    )
    run, begun = Run(scheduler, groups=groups), list[str]()
    steps: list[dict[str, int]] = []
    todo = sorted(enumerate(work), key=lambda item: item[1][2])
    while todo or scheduler.has_unfinished_requests():
        while todo and todo[0][1][2] <= len(steps):
            number, (prompt, output, arrival, family, priority) = todo.pop(0)
            request = make_request(
                scheduler,
                str(number),
                [family] * prompt,
                output,
                arrival=arrival,
                priority=priority,
            )
            scheduler.add_request(request)
        step, outputs = run.step()
        steps.append(step.num_scheduled_tokens)
        begun += [key for key in step.num_scheduled_tokens if key not in begun]
        if not has_drafts:  # a draft that was wrong leaves blocks for what comes next
            check_integrity(scheduler)
        if joint is not None:
            drafts = step.draft_token_ids
            known = {
                key: count - len(drafts.get(key, ()))
                for key, count in step.num_scheduled_tokens.items()
            }
            done = {output.request_id for output in outputs}
            prompts = [count for key, count in known.items() if count > 1 and key in done]
            assert len(prompts) < 2 or sum(prompts) <= joint
        assert scheduler.num_taking_turns <= len(scheduler.waiting)
        assert len(steps) < 5000, "no progress"
    if scheduler.config.policy == "fcfs":
        in_order = sorted(range(len(work)), key=lambda number: work[number][2])
        assert begun == [str(number) for number in in_order]
    assert all(len(run.outputs[str(n)]) == min(w[1], 68 - w[0]) for n, w in enumerate(work))
    return steps
