"""The log of one start as it is read: kept in files, understood, and whether it tells of progress.

A server that is started again gets another one of these.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app.server_logs.log_sink import LogSink
from app.watch.readiness import ProgressClock, bar_in_units
from engine.machine.secrets import secret_values
from logparse import Event, ProgressMade

if TYPE_CHECKING:
    from logparse import LogParser, LogReport

_EVENTS_KEPT = 2000


class StartLog(LogSink):
    """`secrets` must not reach the files, nor must those of our own environment."""

    def __init__(self, path: Path, *, secrets: Sequence[str], max_bytes: int) -> None:
        self.progress = ProgressClock()
        self._parser_or_none: LogParser | None = None
        self._events: deque[Event] = deque(maxlen=_EVENTS_KEPT)
        self._num_lines = 0
        self._lock = threading.Lock()
        super().__init__(
            path,
            secrets=(*secrets, *secret_values()),
            on_line=self._read_line,
            max_bytes=max_bytes,
        )

    def _parser(self) -> LogParser:
        """Made for the first line: meanwhile the server starts that will print it."""
        if self._parser_or_none is None:
            from logparse import LogParser

            self._parser_or_none = LogParser()
        return self._parser_or_none

    def take_events(self) -> tuple[Event, ...]:
        """What the log has told since the last call."""
        with self._lock:
            events = tuple(self._events)
            self._events.clear()
        return events

    def report(self) -> LogReport:
        """All that the log has told so far."""
        with self._lock:
            return self._parser().report()

    def running_phase(self) -> str | None:
        """The part of the start that runs now, as far as the log tells, and what it waits for."""
        phases = self.report().phases
        name = next((phase.name for phase in phases if phase.state == "running"), None)
        if (pid := self.progress.waits_for_pid) is not None:
            return f"{name or 'the start'}, waiting for process {pid} to measure memory"
        return name

    def _read_line(self, line: str) -> None:
        with self._lock:
            events: Sequence[Event] = self._parser().feed(line)
            self._num_lines += 1
            if not any(isinstance(event, ProgressMade) for event in events):
                bar = bar_in_units(line, self._num_lines)
                events = [*events, bar] if bar is not None else events
            self.progress.note(events)
            self._events.extend(events)
