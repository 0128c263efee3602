"""`stoker selftest` on the fake engine and ours, and that it can fail."""

from __future__ import annotations

import os
import signal
import subprocess

import psutil
import pytest

from app.commands.selftest import show_dashboard
from app.selftest import trials as selftest_trials
from app.selftest.run import (
    RunningTrial,
    Trial,
    TrialResult,
    fake_spec,
    run_cycles,
    run_trial,
)
from tests.default_model import default_model_folder


def failures(results: list[TrialResult]) -> list[TrialResult]:
    return [result for result in results if result.problem is not None]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_after_every_end_nothing_is_left() -> None:
    model = default_model_folder()
    results = list(selftest_trials.lifecycle(model, cycles=0, show=show_dashboard))

    assert failures(results) == []
    assert len(results) == 55


@pytest.mark.slow
def test_a_hundred_starts_and_stops_add_no_descriptor_thread_child_or_file() -> None:
    result = run_cycles(100)

    assert result.problem is None


@pytest.mark.slow
def test_idle_busy_stalled_and_dead_are_told_apart() -> None:
    results = list(selftest_trials.stall(default_model_folder()))

    assert failures(results) == []
    assert len(results) == 7


def test_a_process_that_stays_behind_is_found() -> None:
    started: list[subprocess.Popen[bytes]] = []

    def leave_one_behind(trial: RunningTrial) -> None:
        """In a session of its own, without the server's mark: only the search's is on it."""
        trial.wait_for_state("ready", "idle")
        mark = psutil.Process(trial.record().pid).environ()["STOKER_SELFTEST"]
        started.append(
            subprocess.Popen(
                ["sleep", "600"], env={"STOKER_SELFTEST": mark}, start_new_session=True
            )
        )
        os.kill(trial.start.pid, signal.SIGTERM)

    trial = Trial("one escapes", "good", leave_one_behind, 0)
    problem = run_trial(trial, fake_spec, remains_s=1.0).problem

    assert problem is not None
    assert problem.startswith(f"left behind: process {started[0].pid}")
    assert started[0].wait(timeout=60) == -signal.SIGKILL  # the search ends what it finds


def test_another_exit_code_is_a_failure() -> None:
    trial = Trial("ends", "die:1", lambda running: None, 0)

    assert "ended with 5 instead of 0" in str(run_trial(trial, fake_spec).problem)
