from __future__ import annotations

from dataclasses import replace

from app.registry.states import ServerState
from app.watch.forward_progress import ProgressJudge, Reading


def reading(time_s: float, queue: float | None, step: int | None) -> Reading:
    counters = (
        None if step is None else frozenset({("vllm:generation_tokens_total", "", str(step))})
    )
    return Reading(time_s, queue, counters)


def activities(*readings: Reading) -> list[str]:
    judge = ProgressJudge(stall_s=10.0)
    return [judge.judge(one).state.value for one in readings]


def test_a_queue_without_steps_is_stalled_and_recovers_with_the_next_step() -> None:
    seen = activities(
        reading(0, 0, 1), reading(9, 2, 1), reading(18, 2, 1), reading(19, 2, 1), reading(20, 2, 2)
    )
    assert seen == ["idle", "busy", "busy", "stalled", "busy"]


def test_a_saturated_server_that_moves_is_busy() -> None:
    assert activities(*(reading(9.0 * n, 500, n) for n in range(5))) == ["busy"] * 5


def test_a_long_idle_time_does_not_count_against_the_next_request() -> None:
    assert activities(reading(0, 0, 1), reading(100, 0, 1), reading(101, 1, 1))[-1] == "busy"


def test_no_answer_is_forgiven_for_a_while() -> None:
    seen = activities(reading(0, 0, 1), reading(9, None, None), reading(10, None, None))
    assert seen == ["idle", "idle", "stalled"]


def test_a_server_that_exposes_no_queue_is_only_ready() -> None:
    assert activities(reading(0, None, 1), reading(50, None, 1)) == ["ready", "ready"]


def test_a_stopped_process_is_a_stall_at_once_and_named() -> None:
    verdict = ProgressJudge(10.0).judge(reading(0, 0, 1), ["python (pid 7)"])

    assert verdict.state is ServerState.STALLED
    assert verdict.reason == "stopped by a signal: python (pid 7)"


def test_a_stopped_process_is_said_at_once_and_lasts_after_the_patience() -> None:
    judge = ProgressJudge(stall_s=60.0)
    moments = (0.0, 59.0, 61.0)
    verdicts = [judge.judge(Reading(now, 0.0, frozenset()), ["core"]) for now in moments]
    assert [one.state for one in verdicts] == [ServerState.STALLED] * 3
    assert [one.is_lasting for one in verdicts] == [False, False, True]

    judge.judge(Reading(62.0, 0.0, frozenset()))
    assert not judge.judge(Reading(63.0, 0.0, frozenset()), ["core"]).is_lasting


def test_a_server_that_sleeps_need_not_move_and_is_not_called_stalled() -> None:
    readings = [reading(0, 0, 1)]
    readings += [replace(reading(9.0 * n, 2, 1), is_asleep=True) for n in range(1, 5)]
    assert activities(*readings, reading(45, 2, 1))[1:] == ["asleep"] * 4 + ["busy"]
