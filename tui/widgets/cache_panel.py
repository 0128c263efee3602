"""Prefix-cache hits, preemptions and finished requests: the scheduler's side numbers."""

from __future__ import annotations

from rich.text import Text

from tui import formatting
from tui.widgets.panel import Panel


class CachePanel(Panel):
    """Four labelled numbers."""

    TITLE = "Scheduler"

    def lines(self, width: int, height: int) -> list[Text]:
        """Hit rate of the last minute, then numbers since the server started."""
        snapshot = self.snapshot
        sample = snapshot.sample if snapshot else None
        recent_hits = snapshot.recent_hit_rate if snapshot else None
        rows = (
            ("prefix hits", formatting.percent(recent_hits)),
            ("  since start", formatting.percent(sample.prefix_hit_rate if sample else None)),
            ("preemptions", formatting.count(sample.preemptions if sample else None)),
            ("finished", formatting.count(sample.finished if sample else None)),
        )
        return [self.pair(label, value, width) for label, value in rows]
