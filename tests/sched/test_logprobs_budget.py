"""What one step may spend on log probabilities; nobody starves beside those who want them."""

from __future__ import annotations

import pytest

from engine.sampling_params import SamplingParams
from engine.sched.scheduler import Scheduler
from tests.sched.workload import Run, make_request, make_scheduler


def add(scheduler: Scheduler, name: str, prompt: int, max_tokens: int = 1, **asked: int) -> None:
    params = SamplingParams(max_tokens=max_tokens, **asked)  # type: ignore[arg-type]
    scheduler.add_request(make_request(scheduler, name, prompt, max_tokens, params=params))


def test_wide_rows_go_through_a_few_at_a_time() -> None:
    scheduler = make_scheduler(tokens=4096)
    add(scheduler, "wide", 40, prompt_logprobs=4000)
    add(scheduler, "plain", 40)
    run = Run(scheduler)
    assert run.step()[0].num_scheduled_tokens == {"wide": 4, "plain": 40}
    assert run.step()[0].num_scheduled_tokens == {"wide": 4}
    run.finish()
    assert set(run.reasons) == {"wide", "plain"}


def test_a_row_wider_than_the_budget_still_goes_through() -> None:
    scheduler = make_scheduler()
    add(scheduler, "whole-vocabulary", 3, prompt_logprobs=150_000)
    add(scheduler, "sampled", 3, 2, logprobs=150_000)
    Run(scheduler).finish(max_steps=20)


def test_generated_tokens_count_too() -> None:
    scheduler = make_scheduler()
    for name in "abc":
        add(scheduler, name, 1, 3, logprobs=9_000)
    add(scheduler, "plain", 1, 3)
    run = Run(scheduler)
    assert run.step()[0].num_scheduled_tokens == {"a": 1, "plain": 1}
    run.finish()
    assert set(run.reasons) == {"a", "b", "c", "plain"}


def test_prompts_among_themselves_get_long_steps_but_not_in_the_gaps_of_others() -> None:
    scheduler = make_scheduler(tokens=4096, max_model_len=8192, num_blocks=3000)
    run = Run(scheduler)
    add(scheduler, "a", 4000, prompt_logprobs=1)
    add(scheduler, "b", 4000, prompt_logprobs=1)
    assert run.step()[0].num_scheduled_tokens == {"a": 512}
    add(scheduler, "plain", 4)
    assert run.step()[0].num_scheduled_tokens == {"a": 32, "plain": 4}
    for _ in range(64):
        assert run.step()[0].num_scheduled_tokens == {"a": 32}
    assert run.step()[0].num_scheduled_tokens == {"a": 512}


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_prompt_without_its_share_does_not_block_the_head_of_the_queue(policy: str) -> None:
    scheduler = make_scheduler(tokens=4096, policy=policy)
    for name in "ab":
        add(scheduler, name, 300, prompt_logprobs=1)
    add(scheduler, "c", 50)
    add(scheduler, "d", 300, prompt_logprobs=1)
    run = Run(scheduler)
    assert run.step()[0].num_scheduled_tokens == {"a": 32, "c": 50}
    assert [request.request_id for request in scheduler.waiting] == ["b", "d"]
    order = ["a", "c"]
    while scheduler.has_unfinished_requests():
        order += [name for name in run.step()[0].num_scheduled_tokens if name not in order]
    assert order == ["a", "c", "b", "d"]
