"""From when on a reading is worth a look, and from when on it is trouble. One table for everybody.

Dashboard, table of servers, `stoker status` and alerts read the same levels. Owns no colour and no
layout: whoever shows a level adds its sign, since a colour alone is no message.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from app.client import formatting
from app.client.metrics.sample import MetricsSample


class Level(enum.IntEnum):
    """How bad a reading is; the larger, the worse."""

    OK = 0
    WARN = 1
    ALARM = 2

    @property
    def sign(self) -> str:
        """What stands before a value so that it is seen without colours; "" when all is well."""
        return ("", "▲", "✖")[self]

    def signed(self, text: str) -> str:
        """The text behind its sign; alone when all is well."""
        return f"{self.sign} {text}" if self.sign else text


@dataclass(frozen=True, slots=True)
class Threshold:
    """A reading from `warn` on is WARN, from `alarm` on ALARM (None: it never is).

    `text` writes a value of the reading in its own unit.
    """

    label: str
    warn: float
    alarm: float | None
    text: Callable[[float | None], str]


THRESHOLDS: Mapping[str, Threshold] = {
    "kv_usage": Threshold("KV cache", 0.90, 0.97, formatting.percent),
    "waiting": Threshold("waiting", 1, 20, formatting.count),
    "preemptions": Threshold("preemptions", 1, 10, formatting.count),
    "ttft_p90": Threshold("first token p90", 5.0, 20.0, formatting.seconds),
    "error_rate": Threshold("failed requests", 0.01, 0.05, formatting.percent),
    "core_load": Threshold("cores", 0.90, None, formatting.percent),
    "host_memory": Threshold("memory", 0.90, 0.97, formatting.percent),
    "gpu_memory": Threshold("GPU memory", 0.98, None, formatting.percent),
}
"""Shares are of 1, preemptions are those of a window of time, `ttft_p90` is in seconds."""


@dataclass(frozen=True, slots=True)
class ThresholdFinding:
    """One reading that is not OK: `text` is the reading, `reason` says the limit too."""

    name: str
    level: Level
    text: str
    reason: str


def level_of(name: str, value: float | None) -> Level:
    """The level of one reading; what is not known is OK."""
    threshold = THRESHOLDS[name]
    if value is None or value < threshold.warn:
        return Level.OK
    is_alarm = threshold.alarm is not None and value >= threshold.alarm
    return Level.ALARM if is_alarm else Level.WARN


def findings(readings: Mapping[str, float | None]) -> tuple[ThresholdFinding, ...]:
    """Every reading that is not OK, the worst first."""
    found = [_finding(name, value) for name, value in readings.items() if level_of(name, value)]
    return tuple(sorted(found, key=lambda finding: -finding.level))


def readings_of(sample: MetricsSample) -> dict[str, float | None]:
    """What one sample tells without a past: load now, errors since the server started.

    The KV use is the fullest engine's: one that is full makes its own requests wait.
    """
    fullest = sample.fullest
    finished = sample.finished
    failed = sample.failed
    return {
        "kv_usage": fullest.kv_usage if fullest else sample.kv_usage,
        "waiting": sample.waiting,
        "error_rate": failed / finished if failed is not None and finished else None,
    }


def worst(found: tuple[ThresholdFinding, ...]) -> Level:
    """The level of the whole."""
    return max((finding.level for finding in found), default=Level.OK)


def _finding(name: str, value: float | None) -> ThresholdFinding:
    threshold, level = THRESHOLDS[name], level_of(name, value)
    since = threshold.alarm if level is Level.ALARM else threshold.warn
    word = "alarm" if level is Level.ALARM else "warning"
    text = f"{threshold.label} {threshold.text(value)}"
    return ThresholdFinding(name, level, text, f"{text} ({word} from {threshold.text(since)})")
