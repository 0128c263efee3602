"""One start of a server: its processes, its log as it is read, and whether it is ready.

A server that is started again gets another one of these; `ManagedServer` holds what stays.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from app.launch.launch_specs import LaunchSpec
from app.server_logs.log_sink import LogSink
from app.supervise.supervisor import StopTimes, Supervisor
from app.watch.readiness import ProgressClock, ReadyProbe, bar_in_units
from engine.machine.secrets import secret_values
from logparse import Event, LogParser, LogReport, ProgressMade

_EVENTS_KEPT = 2000
_WATCH_INTERVAL_S = 1.0


class OneStart:
    """Made before the process is there; `supervisor.start()` begins it."""

    def __init__(
        self, spec: LaunchSpec, log_path: Path, max_log_bytes: int, times: StopTimes | None
    ) -> None:
        self.log_path = log_path
        self.progress = ProgressClock()
        self.sink = LogSink(
            log_path, secrets=_secrets(spec), on_line=self._read_line, max_bytes=max_log_bytes
        )
        self.supervisor = Supervisor(spec, self.sink, times)
        self.probe = ReadyProbe(spec)
        self.ready_at: float | None = None
        self._began_at = time.monotonic()
        self._watched_at = 0.0
        self._parser = LogParser()
        self._events: deque[Event] = deque(maxlen=_EVENTS_KEPT)
        self._num_lines = 0
        self._lock = threading.Lock()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began_at

    @property
    def served_s(self) -> float:
        """Seconds since it was ready; 0 if it never was."""
        return 0.0 if self.ready_at is None else time.monotonic() - self.ready_at

    def watch(self) -> bool:
        """Note new processes of the tree, at most once a second; True when it was time."""
        now = time.monotonic()
        if now - self._watched_at < _WATCH_INTERVAL_S:
            return False
        self._watched_at = now
        self.supervisor.watch()
        return True

    def take_events(self) -> tuple[Event, ...]:
        """What the log has told since the last call."""
        with self._lock:
            events = tuple(self._events)
            self._events.clear()
        return events

    def report(self) -> LogReport:
        """All that the log has told so far."""
        with self._lock:
            return self._parser.report()

    def running_phase(self) -> str | None:
        """The part of the start that runs now, as far as the log tells."""
        phases = self.report().phases
        return next((phase.name for phase in phases if phase.state == "running"), None)

    def _read_line(self, line: str) -> None:
        with self._lock:
            events: Sequence[Event] = self._parser.feed(line)
            self._num_lines += 1
            if not any(isinstance(event, ProgressMade) for event in events):
                bar = bar_in_units(line, self._num_lines)
                events = [*events, bar] if bar is not None else events
            self.progress.note(events)
            self._events.extend(events)


def _secrets(spec: LaunchSpec) -> tuple[str, ...]:
    """Values that must not reach the log, whatever the server prints."""
    return (*spec.secrets.values(), *secret_values())
