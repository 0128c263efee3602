"""An engine that sleeps: what becomes of its requests, its cache and its adapters."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.core.engine_core import EngineCore
from engine.messages import EngineCoreOutput, FinishReason, MissCause
from tests.core.conftest import engine_config
from tests.core.core_runs import prompts, request, run, run_all

PROMPT = list(range(40))


@pytest.fixture
def core(tiny_folder: Path) -> EngineCore:
    return EngineCore(engine_config(tiny_folder, kernels="reference", num_threads=1))


def asleep(core: EngineCore, level: int = 1, mode: str = "abort") -> list[EngineCoreOutput]:
    core.prepare_sleep(mode)
    return core.fall_asleep(level)


def is_idle(core: EngineCore) -> bool:
    return core.is_idle  # a function, since mypy does not expect a property to change


def last_stats(core: EngineCore) -> int:
    stats = core.stats_message().scheduler_stats
    assert stats is not None
    return stats.sleep_level


@pytest.mark.parametrize("level", [1, 2])
def test_the_same_text_before_and_after(core: EngineCore, level: int) -> None:
    wanted = run_all(core, prompts())
    asleep(core, level)
    assert (core.sleep_level, last_stats(core), core.is_idle) == (level, level, True)
    core.wake_up()
    assert (core.sleep_level, last_stats(core)) == (0, 0)
    assert run_all(core, prompts()) == wanted


def test_the_prefix_cache_is_empty_and_the_miss_says_why(core: EngineCore) -> None:
    run_all(core, [request("a", PROMPT, 2)])
    asleep(core)
    core.wake_up()
    core.add_request(request("b", PROMPT, 1))
    (stats,) = [one.prefill_stats for one in core.step().outputs if one.prefill_stats]
    assert stats.num_cached_tokens == 0
    assert stats.miss is not None
    assert (stats.miss.cause, stats.miss.num_lost_tokens) == (MissCause.EMPTIED, 40)
    assert run(core, [request("c", PROMPT, 2)]).num_cached_tokens == 32


def test_requests_that_run_or_wait_are_told_that_they_end(tiny_folder: Path) -> None:
    core = EngineCore(engine_config(tiny_folder, kernels="reference", max_num_seqs=1))
    core.add_request(request("runs", PROMPT, 30))
    core.add_request(request("waits", PROMPT, 30))
    core.step()
    found = asleep(core)
    assert {one.request_id: one.finish_reason for one in found} == {
        "runs": FinishReason.ABORT,
        "waits": FinishReason.ABORT,
    }
    assert all("cut this request off" in str(one.error) for one in found)
    core.wake_up()
    assert core.is_idle
    assert len(run_all(core, [request("next", PROMPT, 3)])["next"]) == 3


def test_kept_requests_go_on_with_the_tokens_that_they_would_have_had(core: EngineCore) -> None:
    wanted = run_all(core, prompts())
    for item in prompts():
        core.add_request(item)
    found: dict[str, list[int]] = {item.request_id: [] for item in prompts()}

    def take(outputs: list[EngineCoreOutput]) -> None:
        for output in outputs:
            assert output.error is None
            found[output.request_id] += output.new_token_ids

    for _ in range(8):
        take(core.step().outputs)
    take(asleep(core, 2, "keep"))
    assert is_idle(core)
    core.wake_up(["weights"])
    assert is_idle(core)
    core.wake_up(["kv_cache"])
    while not is_idle(core):
        take(core.step().outputs)
    assert found == wanted


def test_new_requests_are_refused_from_the_first_word_of_sleep_on(core: EngineCore) -> None:
    core.add_request(request("first", PROMPT, 3))
    core.prepare_sleep("wait")
    core.add_request(request("second", PROMPT, 3))
    outputs: list[EngineCoreOutput] = []
    while not is_idle(core):
        outputs += core.step().outputs
    ends = {one.request_id: one.finish_reason for one in outputs if one.finish_reason}
    assert ends == {"first": FinishReason.LENGTH, "second": FinishReason.ABORT}
    core.fall_asleep(1)
    core.add_request(request("third", PROMPT, 3))
    assert not is_idle(core)
    (refused,) = core.step().outputs
    assert refused.finish_reason is FinishReason.ABORT
    assert "`stoker wake`" in str(refused.error)


def test_who_is_not_put_to_sleep_after_all_takes_requests_again(core: EngineCore) -> None:
    core.prepare_sleep("wait")
    core.give_up_sleep()
    assert len(run_all(core, [request("a", PROMPT, 3)])["a"]) == 3


def test_a_sleeper_can_go_deeper_but_not_back(core: EngineCore) -> None:
    wanted = run_all(core, [request("a", PROMPT, 5)])
    asleep(core, 1)
    asleep(core, 2)
    asleep(core, 1)
    assert core.sleep_level == 2
    core.wake_up()
    core.wake_up()
    assert run_all(core, [request("a", PROMPT, 5)]) == wanted
