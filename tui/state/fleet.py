"""The table of several servers: what is known of each, its columns, and all as text for a pipe.

Knows no widget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.client import formatting
from app.client.metrics.names import ENGINE_NAMES
from app.client.metrics.sample import MetricsSample
from app.client.thresholds import ThresholdFinding, worst
from app.client.watch.watched import Scraped
from tui.state.history import MetricHistory, Snapshot
from tui.state.levels import findings_in

CONNECTING = "○ connecting"
AWAY = "✖ away"


@dataclass(frozen=True, slots=True)
class FleetRow:
    """What is known of one server. `reason` says why the newest scrape failed, "" if it did not."""

    name: str
    snapshot: Snapshot | None = None
    reason: str = ""
    supervised: str = ""  # what its supervisor says of it
    age_s: float | None = None

    @property
    def sample(self) -> MetricsSample | None:
        return self.snapshot.sample if self.snapshot else None

    @property
    def state(self) -> str:
        if self.reason:
            return f"✖ {self.supervised}" if self.supervised else AWAY
        if self.sample is None:
            return f"○ {self.supervised}" if self.supervised else CONNECTING
        if self.supervised in ("draining", "stalled"):
            return f"▲ {self.supervised}"
        if self.sample.sleep_level:
            return "○ asleep"
        if self.sample.running is None:
            return "● ready"
        word = "● busy" if self.sample.running or self.sample.waiting else "○ idle"
        return f"{word} {worst(self.findings).sign}".rstrip()

    @property
    def findings(self) -> tuple[ThresholdFinding, ...]:
        """What is not as it should be; nothing of a server that is away."""
        return () if self.reason else findings_in(self.snapshot)

    @property
    def kv_usage(self) -> float | None:
        """Of its fullest engine: one that is full makes its own requests wait."""
        if self.sample is None:
            return None
        fullest = self.sample.fullest
        return fullest.kv_usage if fullest else self.sample.kv_usage


@dataclass(frozen=True, slots=True)
class FleetColumn:
    """One of the table; `order` is the key that its rows are sorted by."""

    label: str
    width: int
    text: Callable[[FleetRow], str]
    order: Callable[[FleetRow], float | str]
    is_number: bool = True
    reading: str = ""  # of the thresholds, whose level colours the cell


def _load(row: FleetRow) -> str:
    sample = row.sample
    if sample is None:
        return formatting.UNKNOWN
    return f"{formatting.count(sample.running)}/{formatting.count(sample.waiting)}"


def _tokens_per_s(row: FleetRow) -> float | None:
    return row.snapshot.generation_tokens_per_s if row.snapshot else None


def _first_token(row: FleetRow) -> str:
    histogram = row.snapshot.latency.ttft if row.snapshot else None
    if histogram is None or not histogram.n:
        return formatting.UNKNOWN
    found = (histogram.percentile(fraction) for fraction in (0.5, 0.99))
    return " ".join(formatting.percentile(one).replace(" ", "") for one in found)


def _first_token_order(row: FleetRow) -> float:
    histogram = row.snapshot.latency.ttft if row.snapshot else None
    found = histogram.percentile(0.99) if histogram else None
    return -found.value if found else 1.0


def _down(value: float | None) -> float:
    """A sort key: largest first, unknown last."""
    return 1.0 if value is None else -value


def _engine(row: FleetRow) -> str:
    engine = row.sample.engine if row.sample else ""
    return ENGINE_NAMES.get(engine, engine) or formatting.UNKNOWN


COLUMNS = (
    FleetColumn("server", 15, lambda r: r.name, lambda r: r.name, is_number=False),
    FleetColumn("state", 14, lambda r: r.state, lambda r: r.state, is_number=False),
    FleetColumn(
        "run/wait",
        9,
        _load,
        lambda r: _down((r.sample.running or 0) + (r.sample.waiting or 0) if r.sample else None),
        reading="waiting",
    ),
    FleetColumn(
        "KV",
        8,
        lambda r: formatting.percent(r.kv_usage),
        lambda r: _down(r.kv_usage),
        reading="kv_usage",
    ),
    FleetColumn(
        "tok/s", 7, lambda r: formatting.rate(_tokens_per_s(r)), lambda r: _down(_tokens_per_s(r))
    ),
    FleetColumn("TTFT p50 p99", 16, _first_token, _first_token_order, reading="ttft_p90"),
    FleetColumn(
        "err",
        5,
        lambda r: formatting.count(r.sample.failed if r.sample else None),
        lambda r: _down(r.sample.failed if r.sample else None),
        reading="error_rate",
    ),
    FleetColumn(
        "age",
        6,
        lambda r: formatting.UNKNOWN if r.age_s is None else formatting.age(r.age_s),
        lambda r: _down(r.age_s),
    ),
    FleetColumn("engine", 11, _engine, _engine, is_number=False),
    FleetColumn(
        "model",
        24,
        lambda r: (r.sample.model if r.sample else None) or formatting.UNKNOWN,
        lambda r: (r.sample.model if r.sample else None) or "",
        is_number=False,
    ),
)


def table_text(found: Sequence[Scraped]) -> str:
    """The table of one sample each, for a pipe; speeds need two samples and are left out."""
    rows = [_row_of(scraped) for scraped in found]
    columns = [column for column in COLUMNS if column.label not in ("tok/s", "age")]
    cells = [[column.label for column in columns]]
    cells += [[column.text(row) for column in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    reasons = [f"{row.name}: {row.reason}" for row in rows if row.reason]
    return "\n".join([*lines, *reasons])


def _row_of(scraped: Scraped) -> FleetRow:
    history = MetricHistory()
    if scraped.sample is not None:
        history.append(scraped.sample)
    return FleetRow(scraped.server.name, history.snapshot(), reason=scraped.reason)
