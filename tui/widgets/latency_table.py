"""Latency percentiles with their number of observations, and their bucket where there is room."""

from __future__ import annotations

from rich.text import Text

from app.client.histograms import Histogram
from tui import formatting
from tui.history import Latency, Snapshot
from tui.widgets.panel import Panel

_FRACTIONS = ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"))
_LABEL_WIDTH = 11
_BUCKET_WIDTH = 14
_MIN_VALUE_WIDTH = 9


class LatencyTable(Panel):
    """Three rows: to the first token, between tokens, whole request."""

    TITLE = "Latency"

    def show(self, snapshot: Snapshot | None) -> None:
        """Draw another snapshot; the border says which stretch of time it covers."""
        self.border_subtitle = _stretch(snapshot.latency) if snapshot else ""
        super().show(snapshot)

    def lines(self, width: int, height: int) -> list[Text]:
        """The head and the three rows."""
        latency = self.snapshot.latency if self.snapshot else None
        head = [text for _, text in _FRACTIONS]
        return [
            self._row("", head, ["bucket"] * 3, "n", width, is_head=True),
            self._histogram_row("first token", latency.ttft if latency else None, width),
            self._histogram_row("inter-token", latency.itl if latency else None, width),
            self._histogram_row("end to end", latency.e2e if latency else None, width),
        ]

    def _histogram_row(self, label: str, histogram: Histogram | None, width: int) -> Text:
        found = [histogram.percentile(part) if histogram else None for part, _ in _FRACTIONS]
        return self._row(
            label,
            [formatting.percentile(one) for one in found],
            [formatting.bucket(one) for one in found],
            formatting.count(histogram.n if histogram else None),
            width,
        )

    def _row(
        self,
        label: str,
        values: list[str],
        buckets: list[str],
        n: str,
        width: int,
        *,
        is_head: bool = False,
    ) -> Text:
        part = "label" if is_head else "value"
        value_width, bucket_width, n_width = _column_widths(width)
        row = self.styled(label.ljust(_LABEL_WIDTH), "label")
        for value, bucket in zip(values, buckets, strict=True):
            row.append_text(self.styled(value.rjust(value_width), part))
            if bucket_width:
                row.append_text(self.styled(f" {bucket}".ljust(bucket_width), "note"))
        row.append_text(self.styled(n.rjust(n_width), part))
        return row


def _column_widths(width: int) -> tuple[int, int, int]:
    """Widths of a value, its bucket (0 when there is no room) and the last column."""
    bucket_width = _BUCKET_WIDTH
    if width < _LABEL_WIDTH + 3 * (_MIN_VALUE_WIDTH + _BUCKET_WIDTH) + 8:
        bucket_width = 0
    value_width = max(_MIN_VALUE_WIDTH, (width - _LABEL_WIDTH - 8) // 3 - bucket_width)
    return value_width, bucket_width, width - _LABEL_WIDTH - 3 * (value_width + bucket_width)


def _stretch(latency: Latency) -> str:
    if latency.window_s is None:
        return "since server start"
    return f"last {latency.window_s:.0f} s"
