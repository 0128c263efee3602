"""Latency percentiles with their number of observations, and their bucket where there is room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from app.client import formatting
from app.client.metrics.absence import why_absent
from app.client.metrics.histograms import Histogram, Percentile
from app.client.thresholds import Level, level_of
from tui.state.history import Latency, Snapshot
from tui.widgets.panel import PARTS, Panel, wrapped
from tui.widgets.rows import Row, styled

_LATENCIES = (
    ("first token", "ttft"),
    ("inter-token", "itl"),
    ("in queue", "queue"),
    ("end to end", "e2e"),
)
_FRACTIONS = ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"))
_LABEL_WIDTH = 11
_BUCKET_WIDTH = 14
_MIN_VALUE_WIDTH = 9


class LatencyTable(Panel):
    """Four rows: to the first token, between tokens, in the queue, whole request."""

    TITLE = "Latency"
    READING: ClassVar[tuple[tuple[str, str], ...]] = (
        ("first token", "arrival to first token"),
        ("inter-token", "between two outputs of a request"),
        ("in queue", "queued to first scheduled; counted when a request ends"),
        ("end to end", "arrival to finish"),
        ("~ < >", "estimate in a wide histogram bucket; below the first, above the last bound"),
        ("n", "observations behind the three percentiles"),
    )

    def show(self, snapshot: Snapshot | None) -> None:
        """Draw another snapshot; the border says which stretch of time it covers."""
        self.caption(_stretch(snapshot.latency) if snapshot else "")
        super().show(snapshot)

    def rows(self, width: int, height: int) -> list[Row]:
        """The head and the four rows."""
        head = [text for _, text in _FRACTIONS]
        reason = self._reason_for_all()
        if reason:
            return [styled("n/a", "value"), *wrapped(reason, width, height - 1)]
        return [
            self._row("", head, ["bucket"] * 3, "n", width, is_head=True),
            *(self._latency_row(label, name, width) for label, name in _LATENCIES),
        ]

    def _reason_for_all(self) -> str:
        """Why none of the four is there; "" if one is, or if the reasons differ."""
        snapshot = self.snapshot
        if snapshot is None or any(getattr(snapshot.latency, name) for _, name in _LATENCIES):
            return ""
        reasons = {why_absent(name, snapshot.sample.engine) for _, name in _LATENCIES}
        return reasons.pop() if len(reasons) == 1 else ""

    def _latency_row(self, label: str, name: str, width: int) -> Row:
        snapshot = self.snapshot
        histogram: Histogram | None = getattr(snapshot.latency, name) if snapshot else None
        if histogram is None and snapshot is not None:
            head = styled(f"{label.ljust(_LABEL_WIDTH)} ", "label")
            reason = why_absent(name, snapshot.sample.engine)
            return head + styled(f"n/a: {reason}", "note")
        return self._histogram_row(label, histogram, width)

    def _histogram_row(self, label: str, histogram: Histogram | None, width: int) -> Row:
        found = [histogram.percentile(part) if histogram else None for part, _ in _FRACTIONS]
        return self._row(
            label,
            [formatting.percentile(one) for one in found],
            [formatting.bucket(one) for one in found],
            formatting.count(histogram.n if histogram else None),
            width,
            levels=[
                _level(label, fraction, one)
                for (fraction, _), one in zip(_FRACTIONS, found, strict=True)
            ],
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
        levels: Sequence[Level] = (Level.OK,) * 3,
    ) -> Row:
        part = "label" if is_head else "value"
        value_width, bucket_width, n_width = _column_widths(width)
        row = styled(label.ljust(_LABEL_WIDTH), "label")
        for value, bucket, level in zip(values, buckets, levels, strict=True):
            told = f"{level.sign}{value}".rjust(value_width)
            row += styled(told, PARTS[level] if level else part)
            if bucket_width:
                row += styled(f" {bucket}".ljust(bucket_width), "note")
        return row + styled(n.rjust(n_width), part)


def _column_widths(width: int) -> tuple[int, int, int]:
    """Widths of a value, its bucket (0 when there is no room) and the last column."""
    bucket_width = _BUCKET_WIDTH
    if width < _LABEL_WIDTH + 3 * (_MIN_VALUE_WIDTH + _BUCKET_WIDTH) + 8:
        bucket_width = 0
    value_width = max(_MIN_VALUE_WIDTH, (width - _LABEL_WIDTH - 8) // 3 - bucket_width)
    return value_width, bucket_width, width - _LABEL_WIDTH - 3 * (value_width + bucket_width)


def _level(label: str, fraction: float, found: Percentile | None) -> Level:
    """Only the first token has a limit that holds for every model and prompt."""
    is_judged = label == "first token" and fraction == 0.9
    return level_of("ttft_p90", found.value) if is_judged and found else Level.OK


def _stretch(latency: Latency) -> str:
    if latency.window_s is None:
        return "since server start"
    return f"last {formatting.window(latency.window_s)}"
