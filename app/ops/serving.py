"""The life of `stoker serve` after its command line is checked: start, wait, follow, stop, explain.

The screens are arguments: a view of the start, a way to spend the time while the server runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.errors import ExitCode, StokerError
from app.ops.managed_server import ManagedServer
from app.ops.readiness import StartOutcome
from app.ops.stop_signals import StopSignals
from app.ops.supervisor import StopReport
from app.output import printable
from logparse import Event, LogReport, explain

_TAIL_LINES = 15
_TAIL_COLUMNS = 240  # the line with the whole configuration is longer than a screen


@dataclass(frozen=True, slots=True)
class ServingScreens:
    """What the user sees. Each is called in the main thread.

    `starting` gets the events of the start; `ready` is called once; `running` returns when the user
    wants to end, when its second argument says that the server is gone, or on a signal.
    """

    starting: Callable[[tuple[Event, ...]], None]
    ready: Callable[[ManagedServer], None]
    running: Callable[[ManagedServer, Callable[[], bool]], None]
    stopping: Callable[[], None]
    stopped: Callable[[StopReport], None]


@dataclass(frozen=True, slots=True)
class _Ended:
    """Why the serving ended; `was_ready` divides a failed start from a later death.

    `hang` is what the log told when the time was up, before the stop added its own lines.
    """

    by_itself: bool
    was_ready: bool
    hang: str | None = None


def serve_until_stopped(
    server: ManagedServer, screens: ServingScreens, start_timeout_s: float
) -> ExitCode:
    """Run the server to its end; StokerError (5, 6, 8 or 124) when that end was not wanted."""
    with StopSignals(on_second=server.hurry) as signals:
        server.start()
        try:
            ended = _run(server, screens, signals, start_timeout_s)
        except BaseException:
            screens.stopped(server.stop())
            raise
        report = _stop(server, screens, ended)
    if ended.by_itself:
        error = _death_error(server, ended)
        server.note_failure(str(error))
        raise error
    if ended.hang is not None:
        raise _timeout_error(server, start_timeout_s, ended.hang)
    if not report.is_clean:
        raise _leftover_error(server, report)
    if ended.was_ready or signals.received is None:
        return ExitCode.OK
    return ExitCode(128 + signals.received) if signals.received in (2, 15) else ExitCode.OK


def explanation_text(report: LogReport, exit_code: int | None, tail: list[str]) -> str:
    """Why the server ended: the cause and what to do, else also the last lines of its log."""
    explanation = explain(report, exit_code=exit_code)
    if report.problem is not None and report.problem.is_known:
        return "\n".join(explanation.cause)
    lines = ["the last lines of its log:", *(f"  {_shortened(line)}" for line in tail)]
    return "\n".join([*explanation.cause, *lines])


def _shortened(line: str) -> str:
    shown = printable(line)
    return shown if len(shown) <= _TAIL_COLUMNS else f"{shown[: _TAIL_COLUMNS - 3]}..."


def _run(
    server: ManagedServer, screens: ServingScreens, signals: StopSignals, start_timeout_s: float
) -> _Ended:
    outcome = server.wait_until_ready(
        start_timeout_s, signals.is_requested, lambda: screens.starting(server.take_events())
    )
    if outcome is not StartOutcome.READY:
        return _Ended(
            by_itself=outcome is StartOutcome.EXITED,
            was_ready=False,
            hang=_explain(server) if outcome is StartOutcome.TIMED_OUT else None,
        )
    screens.starting(server.take_events())  # what came with the last moment of the start
    server.begin_service()
    screens.ready(server)

    def should_go_on() -> bool:
        server.watch()
        return server.is_alive() and not signals.is_requested()

    screens.running(server, should_go_on)
    return _Ended(by_itself=not server.is_alive(), was_ready=True)


def _stop(server: ManagedServer, screens: ServingScreens, ended: _Ended) -> StopReport:
    if ended.by_itself:
        return server.stop()  # what it left behind; the error that follows says the rest
    screens.stopping()
    report = server.stop()
    screens.stopped(report)
    return report


def _death_error(server: ManagedServer, ended: _Ended) -> StokerError:
    code = server.exit_code
    how = f"killed by signal {-code}" if code is not None and code < 0 else f"exit status {code}"
    when = "died" if ended.was_ready else "failed to start"
    problem = server.report().problem
    cause = f": {problem.title}" if problem is not None and problem.is_known else ""
    return StokerError(
        f"the server {when} ({how}){printable(cause)}\n{_explain(server)}",
        hint=f"the whole log: {server.log_path}",
        exit_code=ExitCode.ENGINE_DIED if ended.was_ready else ExitCode.ENGINE_FAILED_TO_START,
    )


def _timeout_error(server: ManagedServer, timeout_s: float, hang: str) -> StokerError:
    return StokerError(
        f"the server was not ready after {timeout_s:g} s and was stopped\n{hang}",
        hint=f"give it longer with --startup-timeout; the whole log: {server.log_path}",
        exit_code=ExitCode.TIMEOUT,
    )


def _explain(server: ManagedServer) -> str:
    return explanation_text(server.report(), server.exit_code, server.log_tail(_TAIL_LINES))


def _leftover_error(server: ManagedServer, report: StopReport) -> StokerError:
    return StokerError(
        f"the server was stopped, but {report.remains(server.spec.port)}",
        exit_code=ExitCode.LEFTOVERS_REMAIN,
    )
