"""Random workloads: block ownership, budget, progress, and independence of the schedule."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampling_params import SamplingParams
from engine.sched.request import RequestStatus
from tests.sched.random_workloads import LIMITS, REQUESTS
from tests.sched.workload import (
    Run,
    ScriptedGrammar,
    check_integrity,
    make_request,
    make_scheduler,
)


@settings(max_examples=150, deadline=None)
@given(REQUESTS, LIMITS, st.lists(st.integers(0, 30), max_size=3))
def test_random_workloads_keep_every_invariant(
    work: list[tuple[int, int, int, int, int]], limits: dict[str, Any], aborts: list[int]
) -> None:
    groups = limits["groups"]
    num_blocks = limits.pop("blocks_per_group") * len(groups)
    scheduler = make_scheduler(block_size=4, max_model_len=68, num_blocks=num_blocks, **limits)
    run = Run(scheduler, groups=groups)
    todo = sorted(enumerate(work), key=lambda item: item[1][2])
    aborted: set[str] = set()
    step = 0
    while todo or scheduler.has_unfinished_requests():
        while todo and todo[0][1][2] <= step:
            number, (prompt, output, arrival, family, priority) = todo.pop(0)
            tokens = [family] * prompt
            scheduler.add_request(
                make_request(
                    scheduler, str(number), tokens, output, arrival=arrival, priority=priority
                )
            )
        if step in aborts and scheduler.requests:
            victim = sorted(scheduler.requests)[step % len(scheduler.requests)]
            scheduler.finish_requests([victim], RequestStatus.FINISHED_ABORTED)
            aborted.add(victim)
            check_integrity(scheduler)
        planned, _ = run.step()
        assert planned.total_num_scheduled_tokens == sum(planned.num_scheduled_tokens.values())
        assert planned.total_num_scheduled_tokens <= scheduler.config.max_num_batched_tokens
        assert all(count > 0 for count in planned.num_scheduled_tokens.values())
        assert len(planned.num_scheduled_tokens) <= scheduler.config.max_num_seqs
        assert len(scheduler.running) <= scheduler.config.max_num_seqs
        check_integrity(scheduler)
        step += 1
        assert step < 5000, "no progress"
    assert set(run.reasons) | aborted == {str(number) for number in range(len(work))}
    assert scheduler.kv_cache_manager.usage == 0.0

    reference = make_scheduler(num_blocks=2000, block_size=4, max_model_len=68)
    alone = Run(reference)
    for number, (prompt, output, _, family, _) in enumerate(work):
        reference.add_request(make_request(reference, str(number), [family] * prompt, output))
    alone.finish()
    for request_id, tokens in run.outputs.items():
        expected = alone.outputs[request_id]
        assert tokens == (expected[: len(tokens)] if request_id in aborted else expected)


_MIXED = st.lists(
    st.tuples(
        st.integers(1, 40),  # prompt tokens
        st.integers(1, 8),  # output tokens
        st.integers(0, 6),  # arrives before this step
        st.sampled_from(["plain", "structured", "prompt_logprobs", "logprobs"]),
        st.integers(0, 6),  # steps until its grammar is compiled
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=150, deadline=None)
@given(_MIXED, st.integers(1, 3), st.integers(8, 64))
def test_every_request_is_scheduled_and_each_kind_in_its_order(
    work: list[tuple[int, int, int, str, int]], seqs: int, tokens: int
) -> None:
    """While each seat of a step is taken again and again by those who keep coming."""
    scheduler = make_scheduler(num_blocks=2000, seqs=seqs, tokens=tokens)
    run, step, admitted = Run(scheduler), 0, list[str]()
    todo = sorted(enumerate(work), key=lambda item: item[1][2])
    arrived: list[str] = []
    compiling: list[tuple[int, ScriptedGrammar]] = []
    while len(admitted) < len(work):
        while todo and todo[0][1][2] <= step:
            number, (prompt, output, _, kind, delay) = todo.pop(0)
            params = SamplingParams(max_tokens=output, **_ASKED.get(kind, {}))
            request = make_request(scheduler, str(number), prompt, output, params=params)
            if kind == "structured":
                request.grammar = ScriptedGrammar(length=output, is_ready=delay == 0)
                compiling.append((step + delay, request.grammar))
            scheduler.add_request(request)
            arrived.append(str(number))
        for ready_at, grammar in compiling:
            grammar.is_ready = ready_at <= step
        late = ScriptedGrammar(length=2)
        request = make_request(scheduler, f"late-{step}", 3, 2)
        request.grammar = late
        scheduler.add_request(request)
        planned, _ = run.step()
        admitted += [n for n in planned.num_scheduled_tokens if n in arrived and n not in admitted]
        step += 1
        assert step < 2000, f"{set(arrived) - set(admitted)} starve"
    for kind in ("plain", "prompt_logprobs"):
        mine = [name for name in arrived if work[int(name)][3] == kind]
        assert [name for name in admitted if name in mine] == mine


_ASKED: dict[str, dict[str, Any]] = {
    "prompt_logprobs": {"prompt_logprobs": 5000},
    "logprobs": {"logprobs": 9000},
}
