"""How many guesses are worth their rows: by how they fared, and by what a larger step costs."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings

from engine.kernels.step_batch import NO_TOKEN
from engine.sched.drafts import Drafter, Likelihoods
from engine.sched.request import Request
from engine.sched.scheduler import Scheduler
from engine.speculative_config import SpeculativeConfig
from tests.sched.random_workloads import LIMITS, REQUESTS
from tests.sched.workload import Run, make_request, make_scheduler


def decoding(scheduler: Scheduler, name: str, tokens: list[int]) -> Request:
    """A request whose prompt is computed, and that got its last token."""
    request = make_request(scheduler, name, tokens[:-1], 100)
    request.num_computed_tokens = request.num_tokens
    request.append_output(tokens[-1])
    return request


def loop(scheduler: Scheduler, name: str = "a") -> Request:
    return decoding(scheduler, name, [1, 2, 3, 4, 5, 6] * 6)


def test_the_guess_goes_on_as_the_text_did() -> None:
    request = loop(make_scheduler())
    found = Drafter(SpeculativeConfig(), 64).propose([request])
    assert len(found["a"]) >= 4
    assert found["a"] == ([1, 2, 3, 4, 5, 6] * 3)[: len(found["a"])]


def test_nothing_is_guessed_without_an_earlier_place() -> None:
    request = decoding(make_scheduler(), "a", list(range(50)))
    assert Drafter(SpeculativeConfig(), 64).propose([request]) == {}


def test_guesses_that_fail_get_fewer_and_come_back_by_and_by() -> None:
    request, drafter = loop(make_scheduler()), Drafter(SpeculativeConfig(), 64)
    for _ in range(50):
        for rows in range(1, 10):
            drafter.note_step(rows, 1 + 0.2 * (rows - 1))
    lengths = []
    for _ in range(12):
        draft = drafter.propose([request]).get("a", [])
        lengths.append(len(draft))
        if draft:
            drafter.note("a", len(draft), 0)
    assert lengths[0] >= 3
    assert lengths[-1] == 0
    steps = 0
    while not drafter.propose([request]):
        steps += 1
        assert steps < 1000
    for _ in range(20):
        draft = drafter.propose([request]).get("a", [])
        drafter.note("a", len(draft), len(draft))
    assert len(drafter.propose([request])["a"]) >= lengths[0]


def test_rows_that_cost_as_much_as_they_give_are_left_alone() -> None:
    scheduler = make_scheduler()
    requests = [loop(scheduler, str(number)) for number in range(4)]
    cheap, dear = Drafter(SpeculativeConfig(), 64), Drafter(SpeculativeConfig(), 64)
    for _ in range(100):
        for rows in range(1, 65):
            cheap.note_step(rows, 1.0)
            dear.note_step(rows, float(rows))
    assert sum(map(len, cheap.propose(requests).values())) > 20
    assert dear.propose(requests) == {}


def test_a_step_has_no_more_rows_than_it_may() -> None:
    scheduler = make_scheduler()
    requests = [loop(scheduler, str(number)) for number in range(4)]
    found = Drafter(SpeculativeConfig(), 7).propose(requests)
    assert sum(map(len, found.values())) == 3


def test_chances_follow_what_came_true() -> None:
    likelihoods = Likelihoods(16)
    assert likelihoods.of(1) < likelihoods.of(4) < likelihoods.of(16)
    for _ in range(2000):
        likelihoods.note(4, is_right=False)
        likelihoods.note(40, is_right=True)
    assert likelihoods.of(4) < 0.05
    assert likelihoods.of(16) > 0.98


def test_one_request_of_bad_luck_takes_no_drafts_from_another() -> None:
    scheduler, drafter = make_scheduler(), Drafter(SpeculativeConfig(), 64)
    requests = [loop(scheduler, "good"), loop(scheduler, "bad")]
    for _ in range(30):
        found = drafter.propose(requests)
        for name, draft in found.items():
            drafter.note(name, len(draft), len(draft) if name == "good" else 0)
    found = drafter.propose(requests)
    assert len(found["good"]) >= 4
    assert len(found.get("bad", [])) < len(found["good"])


def test_several_requests_without_drafts_are_looked_at_now_and_then() -> None:
    scheduler, drafter = make_scheduler(), Drafter(SpeculativeConfig(), 64)
    loops = [loop(scheduler, "a"), loop(scheduler, "b")]
    plain = [decoding(scheduler, name, list(range(50))) for name in ("c", "d")]
    for _ in range(200):
        assert drafter.propose(plain) == {}
    steps = 0
    while not drafter.propose(loops):
        steps += 1
        assert steps <= 8
    assert drafter.propose(loops), "no rest while they help"


def test_an_answer_is_the_guess_for_the_same_question() -> None:
    scheduler, drafter = make_scheduler(), Drafter(SpeculativeConfig(), 64)
    first = decoding(scheduler, "a", list(range(20)))
    drafter.propose([first])
    for token in range(100, 140):
        first.append_output(token)
    drafter.end(first)
    again = decoding(scheduler, "b", [*range(50, 60), 100, 101, 102, 103])
    found = drafter.propose([again])["b"]
    assert found == list(range(104, 104 + len(found)))


def test_no_guess_goes_past_the_end_of_the_answer() -> None:
    request = loop(make_scheduler())
    request.max_tokens = 4  # three are left, and the step gives one of them anyway
    assert len(Drafter(SpeculativeConfig(), 64).propose([request])["a"]) == 2


@settings(max_examples=60, deadline=None)
@given(REQUESTS, LIMITS)
def test_any_schedule_gives_the_same_tokens_with_drafts(
    work: list[tuple[int, int, int, int, int]], limits: dict[str, Any]
) -> None:
    """The driver checks that every token finds what it reads, also after a draft was taken back."""
    groups = limits["groups"]
    limits["num_blocks"] = limits.pop("blocks_per_group") * len(groups)
    found = []
    for speculative in (None, SpeculativeConfig(prompt_lookup_min=1, num_speculative_tokens=5)):
        scheduler = make_scheduler(
            block_size=4, max_model_len=68, speculative=speculative, **limits
        )
        run = Run(scheduler, repeating_token, groups)
        for number, (prompt, output, _arrival, family, priority) in enumerate(work):
            tokens = [family, *range(prompt - 1)]
            request = make_request(
                scheduler, f"r{number}", tokens, min(output, 68 - prompt), priority=priority
            )
            scheduler.add_request(request)
        run.finish()
        assert scheduler.kv_cache_manager.usage == 0
        found.append((run.outputs, run.reasons))
    assert found[1] == found[0]


def repeating_token(request: Request) -> int:
    """Goes round, with a slip now and then."""
    number = request.num_tokens
    return number % 4 if number % 7 else number % 5


def test_what_a_draft_made_without_numbers_is_not_found_again() -> None:
    speculative = SpeculativeConfig(prompt_lookup_min=1, num_speculative_tokens=5)
    scheduler = make_scheduler(block_size=4, caching=True, speculative=speculative)
    prompt = [1, 2, 3, 4] * 4

    def going_round(request: Request) -> int:
        return request.num_tokens % 4 + 1

    def nothing_then(request: Request) -> int:
        return NO_TOKEN if request.num_tokens >= 21 else going_round(request)

    run = Run(scheduler, nothing_then)
    scheduler.add_request(make_request(scheduler, "a", prompt, 40))
    plans = []
    while scheduler.has_unfinished_requests():
        plans.append(run.step()[0])
    assert plans[-1].draft_token_ids, "it ends with a draft"
    assert run.reasons == {"a": "error"}
    text = [*prompt, *run.outputs["a"], 9]
    assert len(text) > 20, "the draft filled a block"
    healthy = Run(scheduler, going_round)
    scheduler.add_request(make_request(scheduler, "b", [*prompt, 9], 1))
    healthy.finish()
    scheduler.add_request(make_request(scheduler, "c", text, 1))
    assert scheduler.schedule().new_requests[0].num_computed_tokens == len(prompt)
