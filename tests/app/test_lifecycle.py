"""`stoker selftest` on the fake engine, and that it can fail."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from app.ops import selftest_trials
from app.ops.selftest import (
    RunningTrial,
    Trial,
    TrialResult,
    fake_spec,
    own_engine_spec,
    run_cycles,
    run_trial,
)
from tests.tiny_model import write_tiny_llama


def failures(results: list[TrialResult]) -> list[TrialResult]:
    return [result for result in results if result.problem is not None]


def test_after_every_end_nothing_is_left() -> None:
    results = list(selftest_trials.lifecycle(None, cycles=0))

    assert failures(results) == []
    assert len(results) == 22


@pytest.mark.slow
def test_a_hundred_starts_and_stops_add_no_descriptor_thread_child_or_file() -> None:
    result = run_cycles(100)

    assert result.problem is None


def test_idle_busy_stalled_and_dead_are_told_apart() -> None:
    results = list(selftest_trials.stall(None))

    assert failures(results) == []
    assert len(results) == 6


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
    assert started[0].wait(timeout=30) == -signal.SIGKILL  # the search ends what it finds


def test_another_exit_code_is_a_failure() -> None:
    trial = Trial("ends", "die:1", lambda running: None, 0)

    assert "ended with 5 instead of 0" in str(run_trial(trial, fake_spec).problem)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_our_engine_can_be_interrupted_in_each_phase(number: int, tmp_path: Path) -> None:
    """The last phase is too short to be met; tests/e2e interrupts and kills it when it serves."""
    spec = own_engine_spec(write_tiny_llama(tmp_path / "tiny"))

    assert run_trial(selftest_trials.interrupted_starts()[number], spec).problem is None


@pytest.mark.slow
def test_a_killed_api_server_takes_the_core_along(tmp_path: Path) -> None:
    spec = own_engine_spec(write_tiny_llama(tmp_path / "tiny"))
    (trial,) = (one for one in selftest_trials.both_trials() if "-9 of the server" in one.title)

    assert run_trial(trial, spec).problem is None
