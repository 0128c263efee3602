from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from app.watch.readiness import StartOutcome, wait_until_ready


def script(*answers: bool) -> Callable[[], bool]:
    """A question whose answers are given in order; the last one stays."""
    rest: Iterator[bool] = iter(answers)
    state = {"last": answers[0]}

    def ask() -> bool:
        state["last"] = next(rest, state["last"])
        return state["last"]

    return ask


@pytest.mark.parametrize(
    ("is_ready", "is_alive", "is_stop_requested", "outcome"),
    [
        (script(False, False, True), script(True), script(False), StartOutcome.READY),
        (script(False), script(True, False), script(False), StartOutcome.EXITED),
        (script(False), script(True), script(False, True), StartOutcome.STOP_REQUESTED),
        (script(False), script(True), script(False), StartOutcome.TIMED_OUT),
    ],
)
def test_outcomes(
    is_ready: Callable[[], bool],
    is_alive: Callable[[], bool],
    is_stop_requested: Callable[[], bool],
    outcome: StartOutcome,
) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    result = wait_until_ready(
        is_ready=is_ready,
        is_alive=is_alive,
        is_stop_requested=is_stop_requested,
        timeout_s=5.0,
        still_s=lambda: now[0],
        sleep=sleep,
    )

    assert result is outcome


def test_an_answer_on_the_port_of_a_dead_server_is_not_readiness() -> None:
    outcome = wait_until_ready(
        is_ready=lambda: True,
        is_alive=script(True, False),
        is_stop_requested=lambda: False,
        timeout_s=1.0,
        still_s=lambda: 0.0,
        sleep=lambda seconds: None,
    )

    assert outcome is StartOutcome.EXITED
