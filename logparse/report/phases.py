"""The five phases of a start and their lengths, from the stamps of the lines that belong to them.

A phase ends at the last line that is known to end it (the slowest rank), or where the next
phase's first line stands. A phase without a line of its own did not happen here: it stays absent,
it is not 0 s long.
"""

from __future__ import annotations

from logparse.reading.line import seconds_between
from logparse.records import Event, Phase, PhaseFinished, PhaseStarted

PHASE_NAMES = (
    "configuration",
    "engine start and weight loading",
    "compilation",
    "memory and graphs",
    "serving",
)


class PhaseTracker:
    """Follows one start. Phases count from 1; times are the log's seconds, None if unstamped."""

    def __init__(self) -> None:
        self._current = 0
        self._started: dict[int, float | None] = {}
        self._finished: dict[int, float | None] = {}
        self._last_end: float | None = None
        self._is_over = False

    @property
    def current(self) -> int:
        """The phase being read, 0 before the first."""
        return self._current

    def is_ahead(self, phase: int) -> bool:
        """Whether a line of `phase` would begin a new phase."""
        return phase > self._current and not self._is_over

    def enter(self, phase: int, at: float | None, first_at: float | None, line: int) -> list[Event]:
        """A line of `phase` was read at `at`; `first_at` is the start's first stamp."""
        if not self.is_ahead(phase):
            return []
        events: list[Event] = []
        boundary = first_at if self._current == 0 and phase == 1 else at
        if self._current:
            boundary = self._last_end if self._last_end is not None else at
            events.append(self._finish(boundary, line))
        self._current, self._last_end = phase, None
        self._started[phase] = boundary
        events.append(PhaseStarted(line, PHASE_NAMES[phase - 1], boundary))
        return events

    def note_end(self, phase: int, at: float | None) -> None:
        """A line that ends `phase` for one rank."""
        if phase == self._current and at is not None:
            self._last_end = at

    def complete(self, at: float | None, line: int) -> list[Event]:
        if self._is_over:
            return []
        self._is_over = True
        return [self._finish(at, line)] if self._current else []

    def _finish(self, at: float | None, line: int) -> PhaseFinished:
        self._finished[self._current] = at
        return PhaseFinished(line, PHASE_NAMES[self._current - 1], self._length(self._current))

    def _length(self, phase: int, open_end: float | None = None) -> float | None:
        start = self._started.get(phase)
        end = self._finished.get(phase, open_end)
        return None if start is None or end is None else seconds_between(start, end)

    def phases(self, *, failed: bool, ready_at: float | None) -> tuple[Phase, ...]:
        """All five. `ready_at` closes a last phase that has no line of its own to end it."""
        return tuple(
            Phase(name, self._length(number, ready_at), self._state(number, failed, ready_at))
            for number, name in enumerate(PHASE_NAMES, start=1)
        )

    def _state(self, phase: int, failed: bool, ready_at: float | None) -> str:
        if phase not in self._started:
            return "absent"
        if phase in self._finished or ready_at is not None:
            return "done"
        return "failed" if failed else "running"
