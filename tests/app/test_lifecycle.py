"""`stoker selftest` on the fake engine, and that it can fail."""

from __future__ import annotations

import os
import signal

import psutil

from app.ops import selftest_trials
from app.ops.selftest import RunningTrial, Trial, TrialResult, fake_spec, run_trial
from tests.app.test_supervisor import wait_for


def failures(results: list[TrialResult]) -> list[TrialResult]:
    return [result for result in results if result.problem is not None]


def test_after_every_end_nothing_is_left() -> None:
    results = list(selftest_trials.lifecycle(None, cycles=3))

    assert failures(results) == []
    assert len(results) == 16


def test_idle_busy_stalled_and_dead_are_told_apart() -> None:
    results = list(selftest_trials.stall(None))

    assert failures(results) == []
    assert len(results) == 5


def test_a_process_that_stays_behind_is_found() -> None:
    def kill_supervisor(trial: RunningTrial) -> None:
        trial.wait_for_state("ready", "idle")
        os.kill(trial.start.pid, signal.SIGKILL)

    # Its child neither watches its parent nor heeds SIGTERM.
    trial = Trial("stubborn child", "stubborn", kill_supervisor, -signal.SIGKILL)
    problem = run_trial(trial, fake_spec, remains_s=1.0).problem

    assert problem is not None
    assert problem.startswith("left behind: process ")
    pid = int(problem.split()[3].rstrip(","))
    wait_for(lambda: not psutil.pid_exists(pid))  # the search ends what it finds


def test_another_exit_code_is_a_failure() -> None:
    trial = Trial("ends", "die:1", lambda running: None, 0)

    assert "ended with 5 instead of 0" in str(run_trial(trial, fake_spec).problem)
