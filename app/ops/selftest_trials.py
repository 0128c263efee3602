"""The trials of `stoker selftest`: what can happen to a server, and what must be seen of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from app.errors import ExitCode
from app.ops.selftest import (
    RunningTrial,
    SpecMaker,
    Trial,
    TrialFailed,
    TrialResult,
    fake_spec,
    own_engine_spec,
    run_cycles,
    run_trial,
)
from app.ops.stopping import stop_server

_READY = ("ready", "idle", "busy", "stalled")
_PARTS = range(4)  # of the fake engine's start
_FAILED = ExitCode.ENGINE_FAILED_TO_START
Act = Callable[[RunningTrial], None]


def lifecycle(own_model: Path | None, cycles: int) -> Iterator[TrialResult]:
    """Starts, stops and killings of the fake engine and, with a model, of ours."""
    for trial in (*_fake_trials(), *_both_trials()):
        yield run_trial(trial, fake_spec)
    if cycles:
        yield run_cycles(cycles)
    if own_model is not None:
        yield from _with_own_engine(_both_trials(), own_engine_spec(own_model))


def stall(own_model: Path | None) -> Iterator[TrialResult]:
    """Idle, busy, stalled and dead servers are told apart."""
    for trial in (*_activity_trials(), _suspended_trial()):
        yield run_trial(trial, fake_spec)
    if own_model is not None:
        yield from _with_own_engine([_suspended_trial()], own_engine_spec(own_model))


def _with_own_engine(trials: list[Trial], spec: SpecMaker) -> Iterator[TrialResult]:
    for trial in trials:
        result = run_trial(trial, spec)
        yield TrialResult(f"own engine: {result.title}", result.seconds, result.problem)


def _fake_trials() -> list[Trial]:
    held = [
        Trial(f"Ctrl-C in part {n} of the start", f"hold:{n}", _interrupt_held, 130) for n in _PARTS
    ]
    failed = [
        Trial(f"the engine ends in part {n} of the start", f"die:{n}", _watch, _FAILED)
        for n in _PARTS
    ]
    stubborn = Trial("SIGTERM is ignored by the whole tree", "stubborn", _signal_it("TERM"), 0)
    return [*held, *failed, stubborn]


def _both_trials() -> list[Trial]:
    return [
        Trial("stop by SIGTERM", "good", _signal_it("TERM"), ExitCode.OK),
        Trial("stop by Ctrl-C", "good", _signal_it("INT"), ExitCode.OK),
        Trial("stop from outside", "good", _stop_from_outside, ExitCode.OK),
        Trial("kill -9 of the supervisor", "good", _signal_it("KILL"), -signal.SIGKILL),
        Trial("kill -9 of the server", "good", _kill_server, ExitCode.ENGINE_DIED),
        Trial("kill -9 of the core", "good", _kill_core, ExitCode.ENGINE_DIED),
    ]


def _activity_trials() -> list[Trial]:
    return [
        Trial("no request is idle", "idle", _expect("idle"), ExitCode.OK),
        Trial("a request that moves is busy", "busy", _expect_busy, ExitCode.OK),
        Trial("counters that stand still are a stall", "frozen", _expect("stalled"), ExitCode.OK),
        Trial("a killed server is dead", "idle", _kill_server, ExitCode.ENGINE_DIED),
    ]


def _suspended_trial() -> Trial:
    return Trial("a core stopped by SIGSTOP is a stall", "idle", _suspend_core, ExitCode.OK)


def _watch(trial: RunningTrial) -> None:
    """It ends by itself."""


def _interrupt_held(trial: RunningTrial) -> None:
    trial.wait_for_line("holding")
    os.kill(trial.start.pid, signal.SIGINT)


def _signal_it(name: str) -> Act:
    def act(trial: RunningTrial) -> None:
        trial.wait_for_state(*_READY)
        os.kill(trial.start.pid, signal.Signals[f"SIG{name}"])

    return act


def _stop_from_outside(trial: RunningTrial) -> None:
    trial.wait_for_state(*_READY)
    report = stop_server(trial.record(), now=False)
    if not report.is_clean:
        raise TrialFailed(report.remains(0))


def _kill_server(trial: RunningTrial) -> None:
    trial.wait_for_state(*_READY)
    os.kill(trial.record().pid, signal.SIGKILL)


def _kill_core(trial: RunningTrial) -> None:
    trial.wait_for_state(*_READY)
    trial.core().kill()


def _expect(state: str) -> Act:
    def act(trial: RunningTrial) -> None:
        trial.wait_for_state(state)
        os.kill(trial.start.pid, signal.SIGTERM)

    return act


def _expect_busy(trial: RunningTrial) -> None:
    """Longer than a stall takes to be called one."""
    trial.wait_for_state("busy")
    trial.hold_state("busy")
    os.kill(trial.start.pid, signal.SIGTERM)


def _suspend_core(trial: RunningTrial) -> None:
    trial.wait_for_state("idle")
    core = trial.core()
    core.suspend()
    trial.wait_for_state("stalled")
    core.resume()
    trial.wait_for_state("idle")
    os.kill(trial.start.pid, signal.SIGTERM)
