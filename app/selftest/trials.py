"""The trials of `stoker selftest`: what can happen to a server, and what must be seen of it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from app.errors import ExitCode
from app.registry.states import SERVICE_STATES, ServerState
from app.selftest.run import (
    STALL_S,
    RunningTrial,
    SpecMaker,
    Trial,
    TrialFailed,
    TrialResult,
    TrialTerminal,
    fake_spec,
    own_engine_spec,
    run_cycles,
    run_trial,
    wait_for,
)
from app.supervise.front import Show
from app.supervise.managed_server import ServerCare
from app.supervise.restart_policy import RestartPolicy
from app.supervise.stopping import stop_server
from engine.machine.orphans import find_orphans
from engine.machine.processes import is_alive
from logparse import PHASE_NAMES

_PARTS = range(4)  # of the fake engine's start
_KILLED = -signal.SIGKILL
_FAILED = ExitCode.ENGINE_FAILED_TO_START
Act = Callable[[RunningTrial], None]


def lifecycle(own_model: Path | None, cycles: int, show: Show) -> Iterator[TrialResult]:
    """Starts, stops and killings of the fake engine and, with a model, of ours.

    `show` is the dashboard of the trials in a terminal.
    """
    shared = [*both_trials(), *terminal_trials(show)]
    for trial in (*_fake_trials(), *_restart_trials(), *shared):
        yield run_trial(trial, fake_spec)
    if cycles:
        yield run_cycles(cycles)
    if own_model is not None:
        trials = [*interrupted_starts(), *shared]
        yield from _with_own_engine(trials, own_engine_spec(own_model))


def stall(own_model: Path | None) -> Iterator[TrialResult]:
    """Idle, busy, stalled and dead servers are told apart."""
    for trial in (*_activity_trials(), _hung_trial(), _suspended_trial()):
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
    whole, runaway = "SIGTERM is ignored by the whole tree", "a grandchild left its session"
    ends = [
        Trial(whole, "stubborn", _signal_it("TERM"), ExitCode.OK),
        Trial(f"{whole}, kill -9 of the supervisor", "stubborn", _signal_it("KILL"), _KILLED),
        Trial(runaway, "runaway", _signal_it("TERM"), ExitCode.OK),
        Trial(f"{runaway}, kill -9 of the supervisor", "runaway", _signal_it("KILL"), _KILLED),
        Trial(f"{runaway}, kill -9 of the server", "runaway", _kill_server, ExitCode.ENGINE_DIED),
    ]
    return [*held, *failed, *ends]


def interrupted_starts() -> list[Trial]:
    """Our engine has no hook to hold it: it is interrupted when its log enters the phase."""
    return [
        Trial(f"Ctrl-C in: {name}", "good", _interrupt_phase(name), 130, may_be_done=True)
        for name in PHASE_NAMES
        if name != "compilation"  # it compiles nothing with --enforce-eager
    ]


def _restart_trials() -> list[Trial]:
    quick = _restarting(RestartPolicy(is_on=True, max_restarts=2, first_delay_s=0.05))
    slow = _restarting(RestartPolicy(is_on=True, first_delay_s=600.0, longest_delay_s=600.0))
    return [
        Trial("a killed server is served again", "good", _kill_twice, ExitCode.OK, quick),
        Trial("restarts in a row have a limit", "die:2", _expect_starts(3), _FAILED, quick),
        Trial("a stopped core is served again", "good", _suspend_twice, ExitCode.OK, quick),
        Trial("Ctrl-C while backing off", "die:1", _interrupt_back_off, 130, slow),
    ]


def _restarting(policy: RestartPolicy) -> ServerCare:
    return ServerCare(stall_s=STALL_S, restart=policy)


def both_trials() -> list[Trial]:
    """For the fake engine and for ours."""
    return [
        Trial("stop by SIGTERM", "good", _signal_it("TERM"), ExitCode.OK),
        Trial("stop by Ctrl-C", "good", _signal_it("INT"), ExitCode.OK),
        Trial("stop from outside", "good", _stop_from_outside, ExitCode.OK),
        Trial("kill -9 of the supervisor", "good", _signal_it("KILL"), _KILLED),
        Trial("kill -9 of the supervisor and its guard", "good", _kill_both(), _KILLED),
        Trial("the same, the server stopped", "good", _kill_both("server"), _KILLED),
        Trial("the same, the core stopped", "good", _kill_both("core"), _KILLED),
        Trial("kill -9 of the guard", "good", _replace_guard(signal.SIGKILL), _KILLED),
        Trial("the guard stopped", "good", _replace_guard(signal.SIGSTOP), _KILLED),
        Trial("kill -9 of the server", "good", _kill_server, ExitCode.ENGINE_DIED),
        Trial("kill -9 of the core", "good", _kill_core, ExitCode.ENGINE_DIED),
    ]


def terminal_trials(show: Show) -> list[Trial]:
    """A terminal with a dashboard goes away; only what was started in it ends."""
    plain, deaf = TrialTerminal(show), TrialTerminal(show, ignores_hangups=True)
    two = TrialTerminal(show, has_neighbour=True)
    gone = "the terminal is closed"
    return [
        _in_terminal("stop by SIGTERM, in a terminal", plain, _signal_supervisor, ExitCode.OK),
        _in_terminal(gone, plain, _close_terminal()),
        _in_terminal(f"{gone}, then SIGHUP and SIGTERM", plain, _close_terminal("HUP", "TERM")),
        _in_terminal(f"{gone}, hang-ups are ignored, then SIGTERM", deaf, _close_terminal("TERM")),
        _in_terminal("kill -9 of the front, in a terminal", plain, _kill_front, 128 - _KILLED),
        _in_terminal(f"{gone}, a server of nohup stays", two, _spare_neighbour),
    ]


def _in_terminal(title: str, terminal: TrialTerminal, act: Act, code: int = _KILLED) -> Trial:
    return Trial(title, "good", act, code, terminal=terminal)


def _activity_trials() -> list[Trial]:
    return [
        Trial("no request is idle", "idle", _expect(ServerState.IDLE), ExitCode.OK),
        Trial("a request that moves is busy", "busy", _expect_busy, ExitCode.OK),
        Trial(
            "counters that stand still are a stall",
            "frozen",
            _expect(ServerState.STALLED),
            ExitCode.OK,
        ),
        Trial("a killed server is dead", "idle", _kill_server, ExitCode.ENGINE_DIED),
    ]


def _hung_trial() -> Trial:
    care = ServerCare(stall_s=STALL_S, idle_probe_s=STALL_S)
    return Trial("an idle core that hangs", "hung", _expect(ServerState.STALLED), ExitCode.OK, care)


def _suspended_trial() -> Trial:
    return Trial("a core stopped by SIGSTOP is a stall", "idle", _suspend_core, ExitCode.OK)


def _watch(trial: RunningTrial) -> None:
    """Nothing is done to it: it ends by itself."""


def _interrupt_held(trial: RunningTrial) -> None:
    trial.wait_for_line("holding")
    os.kill(trial.start.pid, signal.SIGINT)


def _interrupt_phase(name: str) -> Act:
    def act(trial: RunningTrial) -> None:
        trial.wait_for_phase(name)
        os.kill(trial.start.pid, signal.SIGINT)

    return act


def _interrupt_back_off(trial: RunningTrial) -> None:
    trial.wait_for_state(ServerState.BACKING_OFF)
    os.kill(trial.start.pid, signal.SIGINT)


def _kill_twice(trial: RunningTrial) -> None:
    for number in (1, 2):
        _kill_server(trial)
        _wait_for_restart(trial, number)
    trial.wait_for_state(*SERVICE_STATES)
    os.kill(trial.start.pid, signal.SIGTERM)


def _suspend_twice(trial: RunningTrial) -> None:
    """First the core, then the server: after --stall-after another start takes its place."""
    trial.wait_for_state(*SERVICE_STATES)
    trial.core().suspend()
    _wait_for_restart(trial, 1)
    trial.wait_for_state(*SERVICE_STATES)
    os.kill(trial.record().pid, signal.SIGSTOP)
    _wait_for_restart(trial, 2)
    trial.wait_for_state(*SERVICE_STATES)
    os.kill(trial.start.pid, signal.SIGTERM)


def _wait_for_restart(trial: RunningTrial, number: int) -> None:
    wait_for(lambda: trial.record().num_restarts == number, f"restart {number}")


def _expect_starts(count: int) -> Act:
    def act(trial: RunningTrial) -> None:
        wait_for(lambda: trial.num_starts() == count, f"{count} starts")

    return act


def _signal_it(name: str) -> Act:
    def act(trial: RunningTrial) -> None:
        trial.wait_for_state(*SERVICE_STATES)
        os.kill(trial.start.pid, signal.Signals[f"SIG{name}"])

    return act


def _signal_supervisor(trial: RunningTrial) -> None:
    trial.wait_for_dashboard()
    os.kill(trial.record().supervisor_pid, signal.SIGTERM)


def _close_terminal(*then: str) -> Act:
    def act(trial: RunningTrial) -> None:
        trial.wait_for_dashboard()
        record, front = trial.record(), _front(trial)
        trial.close_terminal()
        for name in then:
            with contextlib.suppress(ProcessLookupError):
                os.kill(record.supervisor_pid, signal.Signals[f"SIG{name}"])
        trial.wait_for_supervisor(record)
        wait_for(lambda: not front.is_running(), "the end of the front")

    return act


def _kill_front(trial: RunningTrial) -> None:
    trial.wait_for_dashboard()
    record = trial.record()
    _front(trial).kill()
    trial.wait_for_supervisor(record)


def _front(trial: RunningTrial) -> psutil.Process:
    front = psutil.Process(trial.record().supervisor_pid).parent()
    if front is None:
        raise TrialFailed("the supervisor has lost its front")
    return front


def _spare_neighbour(trial: RunningTrial) -> None:
    beside = trial.neighbour()
    beside.wait_for_state(*SERVICE_STATES)
    _close_terminal()(trial)
    record = beside.record()
    if record.state not in SERVICE_STATES or record.pid in {one.pid for one in find_orphans()}:
        raise TrialFailed(f"the other server is {record.state}")
    os.kill(record.supervisor_pid, signal.SIGTERM)
    beside.wait_for_supervisor(record)


def _stop_from_outside(trial: RunningTrial) -> None:
    trial.wait_for_state(*SERVICE_STATES)
    report = stop_server(trial.record(), now=False)
    if not report.is_clean:
        raise TrialFailed(report.remains("its port"))


def _kill_both(*stopped: str) -> Act:
    def act(trial: RunningTrial) -> None:
        trial.wait_for_state(*SERVICE_STATES)
        guard = trial.guard()
        if "core" in stopped:
            trial.core().suspend()
        if "server" in stopped:
            os.kill(trial.record().pid, signal.SIGSTOP)
        os.kill(trial.start.pid, signal.SIGKILL)
        guard.kill()

    return act


def _replace_guard(number: signal.Signals) -> Act:
    """The next guard does what the first would have done."""

    def act(trial: RunningTrial) -> None:
        trial.wait_for_state(*SERVICE_STATES)
        first = trial.guard()
        first.send_signal(number)
        wait_for(lambda: not is_alive(first) and trial.has_guard(), "another guard")
        os.kill(trial.start.pid, signal.SIGKILL)

    return act


def _kill_server(trial: RunningTrial) -> None:
    trial.wait_for_state(*SERVICE_STATES)
    os.kill(trial.record().pid, signal.SIGKILL)


def _kill_core(trial: RunningTrial) -> None:
    trial.wait_for_state(*SERVICE_STATES)
    trial.core().kill()


def _expect(state: ServerState) -> Act:
    def act(trial: RunningTrial) -> None:
        trial.wait_for_state(state)
        os.kill(trial.start.pid, signal.SIGTERM)

    return act


def _expect_busy(trial: RunningTrial) -> None:
    """Longer than a stall takes to be called one."""
    trial.wait_for_state(ServerState.BUSY)
    trial.hold_state(ServerState.BUSY)
    os.kill(trial.start.pid, signal.SIGTERM)


def _suspend_core(trial: RunningTrial) -> None:
    trial.wait_for_state(ServerState.IDLE)
    core = trial.core()
    core.suspend()
    trial.wait_for_state(ServerState.STALLED)
    core.resume()
    trial.wait_for_state(ServerState.IDLE)
    os.kill(trial.start.pid, signal.SIGTERM)
