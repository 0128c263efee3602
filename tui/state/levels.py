"""What a snapshot of the dashboard is judged by. Knows no widget."""

from __future__ import annotations

from collections.abc import Sequence

from app.client.thresholds import Level, ThresholdFinding, findings, readings_of, worst
from tui.state.history import Snapshot


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


def alert_of(snapshot: Snapshot | None, log_errors: Sequence[str]) -> tuple[str, Level]:
    """What is not as it should be: errors in the log first, then readings past their limits."""
    found = findings_in(snapshot)
    words = [finding.level.signed(finding.text) for finding in found]
    if not log_errors:
        return "  ".join(words), worst(found)
    errors = "1 error" if len(log_errors) == 1 else f"{len(log_errors)} errors"
    words.insert(0, Level.ALARM.signed(f"log, {errors}: {log_errors[-1]}"))
    return "  ".join(words), Level.ALARM
