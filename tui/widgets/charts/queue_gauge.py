"""Requests that run and requests that wait, now and over the window."""

from __future__ import annotations

from typing import ClassVar

from app.client import formatting
from app.client.thresholds import Level, level_of
from tui.state.history import Snapshot
from tui.widgets.charts.history_graph import columns, graph_rows
from tui.widgets.panel import PARTS, Panel, pair
from tui.widgets.rows import Row, styled


class QueueGauge(Panel):
    """Two numbers, each over its own graph."""

    TITLE = "Requests"
    READING: ClassVar[tuple[tuple[str, str], ...]] = (
        ("running", "requests in the batch after the last step"),
        (
            "waiting",
            "requests in the queue; held ones wait for LoRA, KV or a grammar",
        ),
    )

    def show(self, snapshot: Snapshot | None) -> None:
        self.show_window(snapshot)
        super().show(snapshot)

    def rows(self, width: int, height: int) -> list[Row]:
        """Running in the upper half, waiting in the lower."""
        lower = height // 2
        return [
            *self._half("running", "", width, lower),
            *self._half("waiting", self._held(), width, height - lower),
        ]

    def _held(self) -> str:
        deferred = self.snapshot.sample.waiting_deferred if self.snapshot else None
        return f", {formatting.count(deferred)} held" if deferred else ""

    def _half(self, name: str, note: str, width: int, height: int) -> list[Row]:
        snapshot = self.snapshot
        value = snapshot.point.value(name) if snapshot else None
        drawn = columns(snapshot.series(name), snapshot.window_s, width) if snapshot else []
        level = level_of("waiting", value) if name == "waiting" else Level.OK
        text = level.signed(f"{formatting.count(value)}{note}")
        return [
            pair(name, text, width, PARTS[level]),
            *(styled(row, "graph") for row in graph_rows(drawn, height - 1)),
        ]
