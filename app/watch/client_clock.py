"""For how long no client has asked a server for anything, judged from what its metrics count.

Scrapes move no counter of the engine; the supervisor's own probes do, and are taken out by number.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.watch.forward_progress import Reading


@dataclass(frozen=True, slots=True)
class ProbeCount:
    """The supervisor's own requests: how many so far, and whether one is being answered."""

    num_asked: int = 0
    is_asking: bool = False


class ClientClock:
    """Feed it every reading; it begins when it is made, with a server that is ready."""

    def __init__(self, now_s: float) -> None:
        self._asked_at = now_s
        self._last: tuple[Reading, ProbeCount] | None = None
        self._most_finished: float | None = None  # of clients; a probe on its way lowers the count

    def note(self, reading: Reading, probes: ProbeCount) -> None:
        """Take a reading; one without an answer says nothing."""
        if reading.queue is None:
            return
        if reading.queue > int(probes.is_asking) or self._has_new_end(reading, probes):
            self._asked_at = reading.time_s
        self._last = reading, probes

    def _has_new_end(self, reading: Reading, probes: ProbeCount) -> bool:
        """Whether a client's request came and went between two looks."""
        if reading.finished is None:
            return self._has_moved(reading, probes)
        finished, before = reading.finished - probes.num_asked, self._most_finished
        self._most_finished = finished if before is None else max(before, finished)
        return before is not None and finished > before

    def _has_moved(self, reading: Reading, probes: ProbeCount) -> bool:
        """For an engine that counts tokens only; what moved beside a probe is taken for its."""
        if self._last is None or reading.counters == self._last[0].counters:
            return False
        was = self._last[1]
        return not was.is_asking and was.num_asked == probes.num_asked

    def idle_s(self, now_s: float) -> float | None:
        """Seconds since a client's last request; None for a server that does not show its queue."""
        return max(0.0, now_s - self._asked_at) if self._last is not None else None
