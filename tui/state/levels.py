"""What a snapshot of the dashboard is judged by, and how a level is drawn. No widget."""

from __future__ import annotations

from app.client.metrics.thresholds import Level, ThresholdFinding, findings, level_of, readings_of
from tui.state.history import Snapshot
from tui.widgets.rows import Row, styled

PARTS = {Level.OK: "value", Level.WARN: "warn", Level.ALARM: "alarm"}


def readings_in(snapshot: Snapshot, core_load: float | None = None) -> dict[str, float | None]:
    """What one sample tells, and what only a stretch of time does."""
    first_token = snapshot.latency.ttft.percentile(0.9) if snapshot.latency.ttft else None
    failed, finished = snapshot.recent_failed, snapshot.recent_finished
    return {
        **readings_of(snapshot.sample),
        "preemptions": snapshot.recent_preemptions,
        "ttft_p90": first_token.value if first_token else None,
        "error_rate": failed / finished if failed is not None and finished else None,
        "core_load": core_load,
    }


def findings_in(snapshot: Snapshot | None) -> tuple[ThresholdFinding, ...]:
    """What is not as it should be, the worst first.

    Cores that work are what a server on a CPU is for: they are the limit panel's to tell.
    """
    return findings(readings_in(snapshot)) if snapshot else ()


def part_of(name: str, value: float | None) -> str:
    """The part of a panel whose style the reading has."""
    return PARTS[level_of(name, value)]


def leveled(text: str, name: str, value: float | None) -> Row:
    """The text in its level's style, with a sign for those who see no colours."""
    level = level_of(name, value)
    return styled(f"{level.sign} {text}" if level.sign else text, PARTS[level])
