"""Requests that run and requests that wait, now and in the recent past."""

from __future__ import annotations

from rich.text import Text

from tui import formatting
from tui.history import Series
from tui.widgets.history_graph import graph_rows
from tui.widgets.panel import Panel


class QueueGauge(Panel):
    """Two numbers, each over its own graph."""

    TITLE = "Requests"

    def lines(self, width: int, height: int) -> list[Text]:
        """Running in the upper half, waiting in the lower."""
        snapshot = self.snapshot
        running = snapshot.sample.running if snapshot else None
        waiting = snapshot.sample.waiting if snapshot else None
        lower = height // 2
        return [
            *self._half("running", running, snapshot.running if snapshot else (), width, lower),
            *self._half(
                "waiting", waiting, snapshot.waiting if snapshot else (), width, height - lower
            ),
        ]

    def _half(
        self, label: str, value: float | None, series: Series, width: int, height: int
    ) -> list[Text]:
        graph = graph_rows(series, width, height - 1)
        return [
            self.pair(label, formatting.count(value), width),
            *(self.styled(row, "graph") for row in graph),
        ]
