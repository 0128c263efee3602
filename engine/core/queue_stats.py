"""QueueCounts: what the DPCoordinator knows of the engines' queues. Opens no socket."""

from __future__ import annotations

from collections import deque

from engine.messages import ClientReport, EngineStats, QueueStats, SchedulerStats

_MOST_PREFIXES = 1 << 14  # between two publications


class QueueCounts:
    """The last word of every engine and of every API server."""

    def __init__(self, num_engines: int) -> None:
        self._engines = [SchedulerStats()] * num_engines
        self._clients: dict[int, list[int]] = {}
        self._tokens: dict[int, int] = {}
        self._prefixes: deque[tuple[bytes, int]] = deque(maxlen=_MOST_PREFIXES)
        self.has_changed = True
        """Whether there is something that was not published yet."""

    def note_engine(self, stats: EngineStats) -> None:
        """An engine has made a step."""
        before, now = self._engines[stats.engine_index], stats.scheduler
        self.has_changed |= _published(before) != _published(now)
        self._engines[stats.engine_index] = now

    def note_client(self, report: ClientReport) -> None:
        """An API server has sent requests, or has seen the end of some."""
        self._clients[report.client_index] = report.num_requests
        self._tokens[report.client_index] = report.num_queued_tokens
        self._prefixes += report.prefixes
        self.has_changed = True

    def note_down(self, rank: int) -> None:
        """An engine is gone, with all that was queued there."""
        self._engines[rank] = SchedulerStats()
        for numbers in self._clients.values():
            numbers[rank] = 0
        self.has_changed = True

    def note_client_down(self, client: int) -> None:
        """An API server is gone, and with it its requests."""
        self._tokens.pop(client, None)
        self.has_changed |= self._clients.pop(client, None) is not None

    def publication(self) -> QueueStats:
        """All that is known, and the prefixes that are new since the last one."""
        prefixes = list(self._prefixes)
        self._prefixes.clear()
        self.has_changed = False
        return QueueStats(
            [stats.num_waiting_for_room for stats in self._engines],
            [stats.num_running_reqs for stats in self._engines],
            dict(self._clients),
            prefixes,
            dict(self._tokens),
            [stats.sleep_level for stats in self._engines],
        )


def _published(stats: SchedulerStats) -> tuple[int, int, int]:
    return stats.num_running_reqs, stats.num_waiting_for_room, stats.sleep_level
