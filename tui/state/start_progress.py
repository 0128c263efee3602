"""How far a server's start has come, read from its log as it grows. Knows no widget."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from logparse import (
    FactFound,
    LogParser,
    LogReport,
    PhaseStarted,
    ProblemFound,
    ProgressMade,
    ServerReady,
    ServerStopped,
    StartRepeated,
    explain,
)
from logparse.report.explain import phase_time

PHASE_MARKS = {"done": "✓", "running": "…", "failed": "✗", "absent": " "}


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """One phase as it is shown; `seconds` is by the log, or by our clock while it runs."""

    mark: str
    name: str
    time: str
    detail: str


class StartProgress:
    """Feed it the log's lines with the moment at which they were seen."""

    def __init__(self) -> None:
        self._parser = LogParser()
        self._began_s: dict[str, float] = {}
        self._detail = ""
        self._has_caught_up = False
        self._has_problem = False
        self.is_ready = False
        self.is_over = False
        self.num_lines = 0

    def feed(self, lines: Iterable[str], now_s: float) -> None:
        """Read on. What the first call brings was written before we looked."""
        for line in lines:
            self.num_lines += 1
            for event in self._parser.feed(line):
                self._note(event, now_s)
        self._has_caught_up = True

    def _note(self, event: object, now_s: float) -> None:
        if isinstance(event, PhaseStarted):
            self._detail = ""
            if self._has_caught_up:
                self._began_s[event.name] = now_s
        elif isinstance(event, ProgressMade):
            self._detail = f"{event.text} {event.done}/{event.total}".strip()
        elif isinstance(event, FactFound) and event.key == "waits_for_pid":
            self._detail = f"waits for process {event.value}, which measures memory"
        elif isinstance(event, ServerReady):
            self.is_ready, self.is_over = True, False
        elif isinstance(event, ServerStopped):
            self.is_over = True
        elif isinstance(event, ProblemFound):
            self._has_problem = True
        elif isinstance(event, StartRepeated):
            self.is_ready = self.is_over = self._has_problem = False

    @property
    def is_starting(self) -> bool:
        """A start has begun in the log and is not over."""
        return self._parser.phase > 0 and not (self.is_ready or self.is_over)

    @property
    def is_draining(self) -> bool:
        """It served, and was asked to stop."""
        return self.is_ready and self._parser.is_stopping

    @property
    def phase(self) -> str:
        """Name of the phase that runs; "" between them."""
        names = (phase.name for phase in self.report().phases if phase.state == "running")
        return next(names, "")

    @property
    def engine_version(self) -> str | None:
        """As the engine's banner tells it."""
        return self.report().facts.engine_version

    @property
    def trouble(self) -> str:
        """What went wrong so far, in one line."""
        return explain(self.report()).headline if self._has_problem else ""

    def report(self) -> LogReport:
        """All that was read so far."""
        return self._parser.report()

    def rows(self, now_s: float) -> list[PhaseRow]:
        rows = []
        for phase in self.report().phases:
            detail = self._detail if phase.state == "running" else ""
            time = phase_time(phase) if phase.seconds is not None else ""
            began_s = self._began_s.get(phase.name)
            if phase.state == "running" and began_s is not None:
                time = f"{now_s - began_s:.1f} s"
            rows.append(PhaseRow(PHASE_MARKS[phase.state], phase.name, time, detail))
        return rows
