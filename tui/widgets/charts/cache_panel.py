"""Prefix-cache hits, accepted drafts, preemptions, finished requests and step size."""

from __future__ import annotations

from typing import ClassVar

from app.client import formatting
from app.client.thresholds import Level, level_of
from tui.state.history import Snapshot
from tui.state.levels import readings_in
from tui.widgets.panel import PARTS, Panel, pair
from tui.widgets.rows import Row


class CachePanel(Panel):
    """Five labelled numbers of the prefix cache and the scheduler."""

    TITLE = "Scheduler"
    READING: ClassVar[tuple[tuple[str, str], ...]] = (
        ("prefix hits", "share of prompt tokens found in the prefix cache, over the window"),
        (
            "drafts kept",
            "share of the tokens guessed by speculative decoding that the model accepted, over the "
            "window; instead of the hits since start, where a server guesses",
        ),
        (
            "preemptions",
            "requests put back to free their blocks; (+n) in the window",
        ),
        ("finished", "requests since the server started, failed ones after the slash"),
        ("tokens/step", "mean tokens of an engine step since the sample before"),
    )

    def rows(self, width: int, height: int) -> list[Row]:
        """Shares of the window, then numbers since the server started."""
        snapshot = self.snapshot
        recent_hits = snapshot.recent_hit_rate if snapshot else None
        steps = snapshot.point.tokens_per_step if snapshot else None
        rows = (
            ("prefix hits", formatting.percent(recent_hits)),
            _drafts_kept(snapshot) or ("  since start", _hits_since_start(snapshot)),
            ("preemptions", _preemptions(snapshot)),
            ("finished", _finished(snapshot)),
            ("tokens/step", formatting.rate(steps)),
        )
        readings = readings_in(snapshot) if snapshot else {}
        levels = {
            label: level_of(name, readings.get(name))
            for label, name in (("preemptions", "preemptions"), ("finished", "error_rate"))
        }
        return [
            pair(label, level.signed(value), width, PARTS[level])
            for label, value in rows
            for level in (levels.get(label, Level.OK),)
        ]


def _hits_since_start(snapshot: Snapshot | None) -> str:
    return formatting.percent(snapshot.sample.prefix_hit_rate if snapshot else None)


def _drafts_kept(snapshot: Snapshot | None) -> tuple[str, str] | None:
    """A label and its value; None where the server guesses no tokens."""
    if snapshot is None or snapshot.sample.spec_draft_tokens is None:
        return None
    return "drafts kept", formatting.percent(snapshot.recent_acceptance)


def _preemptions(snapshot: Snapshot | None) -> str:
    if snapshot is None:
        return formatting.UNKNOWN
    recent = snapshot.recent_preemptions
    note = f" (+{formatting.count(recent)})" if recent else ""
    return formatting.count(snapshot.sample.preemptions) + note


def _finished(snapshot: Snapshot | None) -> str:
    sample = snapshot.sample if snapshot else None
    failed = f" / {formatting.count(sample.failed)}" if sample and sample.failed else ""
    return formatting.count(sample.finished if sample else None) + failed
