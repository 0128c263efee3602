"""The life of `stoker serve` after its command line is checked: start, wait, follow, stop, explain.

A server that ended by itself is started again where the policy allows it. The screens are
arguments: a view of the start, a way to spend the time while the server runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.errors import ExitCode, StokerError
from app.output import printable
from app.registry.states import ServerState
from app.supervise.ending import StopReport
from app.supervise.managed_server import ManagedServer
from app.supervise.restart_policy import RestartCount, why_no_restart
from app.supervise.service_report import ServiceReport
from app.supervise.status_pages import state_text
from app.supervise.stop_signals import StopSignals
from app.supervise.waiting import wait_until
from app.watch.readiness import StartOutcome

if TYPE_CHECKING:
    from logparse import Event, LogReport

_TAIL_LINES = 15
_TAIL_COLUMNS = 240  # the line with the whole configuration is longer than a screen


@dataclass(frozen=True, slots=True)
class BackOff:
    """Why a server ended, and when it is started again."""

    error: StokerError
    number: int  # of the restart, in a row
    limit: int
    delay_s: float


@dataclass(frozen=True, slots=True)
class ServingScreens:
    """What the user sees. Each is called in the main thread.

    `starting` gets the events of a start; `ready` is called once for each; `running` returns when
    the user wants to end, when its second argument says that the server is gone, or on a signal.
    """

    starting: Callable[[tuple[Event, ...]], None]
    ready: Callable[[ManagedServer], None]
    running: Callable[[ManagedServer, Callable[[], bool]], None]
    stopping: Callable[[], None]
    stopped: Callable[[StopReport], None]
    backing_off: Callable[[BackOff], None]
    starting_again: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Ended:
    """Why a start ended; `was_ready` divides a failed start from a later death.

    `hang` is why it had to be ended: for a start, what the log told when the time was up, before
    the stop added its own lines.
    """

    by_itself: bool
    was_ready: bool
    hang: str | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether the user ended it: it neither ended by itself nor hung."""
        return not self.by_itself and self.hang is None


def serve_until_stopped(
    server: ManagedServer, screens: ServingScreens, start_timeout_s: float
) -> ExitCode:
    """Run the server to its end; StokerError (5, 6, 8 or 124) when that end was not wanted."""
    is_service = server.care.service.address is not None
    with StopSignals(on_second=server.hurry, is_service=is_service) as signals:
        return _Life(server, screens, signals, start_timeout_s).run()


class _Life:
    """All starts of one server."""

    def __init__(
        self,
        server: ManagedServer,
        screens: ServingScreens,
        signals: StopSignals,
        start_timeout_s: float,
    ) -> None:
        self._server = server
        self._screens = screens
        self._signals = signals
        self._start_timeout_s = start_timeout_s
        self._count = RestartCount(server.care.restart)
        self._report = ServiceReport(server, start_timeout_s)
        self._was_ready = False

    def run(self) -> ExitCode:
        self._server.start()
        while True:
            try:
                ended = self._run_once()
            except BaseException:
                self._screens.stopped(self._server.stop())
                raise
            self._was_ready = self._was_ready or ended.was_ready
            if ended.is_wanted:
                self._stop()
                return self._requested_code()
            self._back_off(ended)
            if self._signals.is_requested():
                self._report.stopping()
                self._server.leave()
                return self._requested_code()
            self._screens.starting_again()
            self._server.start_again()

    def _run_once(self) -> _Ended:
        """One start, to its end."""
        server, signals = self._server, self._signals

        def tick() -> None:
            self._answer_signals()
            self._report.starting()
            self._screens.starting(server.log.take_events())

        outcome = server.wait_until_ready(self._start_timeout_s, signals.is_requested, tick)
        if outcome is not StartOutcome.READY:
            return _Ended(
                by_itself=outcome is StartOutcome.EXITED,
                was_ready=False,
                hang=_explain(server) if outcome is StartOutcome.TIMED_OUT else None,
            )
        self._screens.starting(server.log.take_events())  # what came with the last of the start
        server.begin_service()
        self._screens.ready(server)
        self._report.ready()
        self._screens.running(server, self._should_go_on)
        is_unused = server.is_alive() and server.is_unused()
        if is_unused:
            server.tell("no client has asked for as long as --exit-when-idle allows")
        if signals.is_requested() or is_unused:
            return _Ended(by_itself=False, was_ready=True)
        if server.spec.is_headless and server.exit_code == 0:
            server.tell("node 0 has ended, and this node with it")
            return _Ended(by_itself=False, was_ready=True)
        stall = (server.stall_to_end() or server.halt()) if server.is_alive() else None
        return _Ended(by_itself=not server.is_alive(), was_ready=True, hang=stall)

    def _should_go_on(self) -> bool:
        server = self._server
        server.watch()
        self._answer_signals()
        self._report.running()
        is_wanted = server.is_alive() and not self._signals.is_requested()
        is_moving = server.stall_to_end() is None and server.halt() is None
        return is_wanted and is_moving and not server.is_unused()

    def _answer_signals(self) -> None:
        """Those that do not end anything."""
        if self._signals.take_suspension():
            self._server.note("Ctrl-Z is not obeyed; `stoker serve --detach` leaves the terminal")
        if self._signals.take_state_request():
            self._server.tell(state_text(self._server.status()))
        if self._signals.take_reload_request():
            self._report.reloading()
            self._server.read_care_again()
            self._count = RestartCount(self._server.care.restart)
            self._report.reloaded()

    def _stop(self) -> None:
        self._report.stopping()
        self._screens.stopping()
        report = self._server.stop()
        self._screens.stopped(report)
        if not report.is_clean:
            raise _leftover_error(self._server, report)

    def _requested_code(self) -> ExitCode:
        number = self._signals.received
        if self._was_ready or number is None:
            return ExitCode.OK
        return ExitCode(128 + number)

    def _back_off(self, ended: _Ended) -> None:
        """Clear away what is left and wait for the next start; raises when there is none."""
        if ended.hang is not None:
            self._screens.stopping()
            if ended.was_ready:
                self._server.hurry()  # requests that stand still are not waited for
        served_s = self._server.served_s
        report = self._server.clear_away()
        if ended.hang is not None:
            self._screens.stopped(report)
        error = _failure(self._server, ended, self._start_timeout_s)
        if not (policy := self._server.care.restart).is_on:
            raise self._last(error)
        if (reason := _why_no_restart(self._server, ended, report)) is not None:
            raise self._last(error, reason)
        if (delay_s := self._count.next_delay_s(served_s)) is None:
            raise self._last(error, f"{policy.max_restarts} restarts in a row did not help")
        self._wait(BackOff(error, self._count.in_a_row, policy.max_restarts, delay_s))

    def _last(self, error: StokerError, reason: str | None = None) -> StokerError:
        if reason is not None:
            text = f"{error}\nnot started again: {reason}"
            error = StokerError(text, hint=error.hint, exit_code=error.exit_code)
        self._report.failed(str(error))
        self._server.leave(failure=str(error))
        return error

    def _wait(self, back_off: BackOff) -> None:
        self._screens.backing_off(back_off)
        when = f"restart {back_off.number} of {back_off.limit} in {back_off.delay_s:g} s"
        cause = str(back_off.error).partition("\n")[0]
        self._server.note_state(ServerState.BACKING_OFF, f"{when}: {cause}")
        self._report.waiting(f"{when}: {cause}")

        def is_requested() -> bool:
            self._answer_signals()
            return self._signals.is_requested()

        wait_until(is_requested, back_off.delay_s)


def _why_no_restart(server: ManagedServer, ended: _Ended, report: StopReport) -> str | None:
    if not report.is_clean:
        return report.remains(server.spec.place)
    exit_code = server.exit_code if ended.by_itself else None
    return why_no_restart(exit_code, server.log.report().problem)


def _failure(server: ManagedServer, ended: _Ended, start_timeout_s: float) -> StokerError:
    if ended.hang is not None and ended.was_ready:
        return _stall_error(server, ended.hang)
    if ended.hang is not None:
        return _timeout_error(server, start_timeout_s, ended.hang)
    return _death_error(server, ended)


def explanation_text(report: LogReport, exit_code: int | None, tail: list[str]) -> str:
    """Why the server ended: the cause and what to do, else also the last lines of its log."""
    from logparse import explain

    explanation = explain(report, exit_code=exit_code)
    if report.problem is not None and report.problem.is_known:
        return "\n".join(explanation.cause)
    lines = ["the last lines of its log:", *(f"  {_shortened(line)}" for line in tail)]
    return "\n".join([*explanation.cause, *lines])


def _shortened(line: str) -> str:
    shown = printable(line)
    return shown if len(shown) <= _TAIL_COLUMNS else f"{shown[: _TAIL_COLUMNS - 3]}..."


def _death_error(server: ManagedServer, ended: _Ended) -> StokerError:
    code = server.exit_code
    how = f"killed by signal {-code}" if code is not None and code < 0 else f"exit status {code}"
    when = "died" if ended.was_ready else "failed to start"
    problem = server.log.report().problem
    cause = f": {problem.title}" if problem is not None and problem.is_known else ""
    return StokerError(
        f"the server {when} ({how}){printable(cause)}\n{_explain(server)}",
        hint=f"the whole log: {server.log.path}",
        exit_code=ExitCode.ENGINE_DIED if ended.was_ready else ExitCode.ENGINE_FAILED_TO_START,
    )


def _stall_error(server: ManagedServer, reason: str) -> StokerError:
    return StokerError(
        f"the server was stopped, since it was stalled: {reason}",
        hint=f"the whole log: {server.log.path}",
        exit_code=ExitCode.ENGINE_STALLED,
    )


def _timeout_error(server: ManagedServer, timeout_s: float, hang: str) -> StokerError:
    return StokerError(
        f"the server was stopped: not ready, and no progress for {timeout_s:g} s\n{hang}",
        hint=f"give it longer with --startup-timeout; the whole log: {server.log.path}",
        exit_code=ExitCode.TIMEOUT,
    )


def _explain(server: ManagedServer) -> str:
    return explanation_text(server.log.report(), server.exit_code, server.log.tail(_TAIL_LINES))


def _leftover_error(server: ManagedServer, report: StopReport) -> StokerError:
    return StokerError(
        f"the server was stopped, but {report.remains(server.spec.place)}",
        exit_code=ExitCode.LEFTOVERS_REMAIN,
    )
