"""One line per server: state, engine, model, load, cache, speed, latency, errors, age."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.widgets import DataTable

from app.client import formatting
from app.client.metrics.names import ENGINE_NAMES
from app.client.metrics.sample import MetricsSample
from app.client.metrics.thresholds import Level, ThresholdFinding, worst
from tui.state.history import Snapshot
from tui.state.levels import findings_in

CONNECTING = "○ connecting"
AWAY = "✖ away"


_MOST_SPARE = 20


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
class _Column:
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
    """Largest first, unknown last."""
    return 1.0 if value is None else -value


def _engine(row: FleetRow) -> str:
    engine = row.sample.engine if row.sample else ""
    return ENGINE_NAMES.get(engine, engine) or formatting.UNKNOWN


COLUMNS = (
    _Column("server", 15, lambda r: r.name, lambda r: r.name, is_number=False),
    _Column("state", 14, lambda r: r.state, lambda r: r.state, is_number=False),
    _Column(
        "run/wait",
        9,
        _load,
        lambda r: _down((r.sample.running or 0) + (r.sample.waiting or 0) if r.sample else None),
        reading="waiting",
    ),
    _Column(
        "KV",
        8,
        lambda r: formatting.percent(r.kv_usage),
        lambda r: _down(r.kv_usage),
        reading="kv_usage",
    ),
    _Column(
        "tok/s", 7, lambda r: formatting.rate(_tokens_per_s(r)), lambda r: _down(_tokens_per_s(r))
    ),
    _Column("TTFT p50 p99", 16, _first_token, _first_token_order, reading="ttft_p90"),
    _Column(
        "err",
        5,
        lambda r: formatting.count(r.sample.failed if r.sample else None),
        lambda r: _down(r.sample.failed if r.sample else None),
        reading="error_rate",
    ),
    _Column(
        "age",
        6,
        lambda r: formatting.UNKNOWN if r.age_s is None else formatting.age(r.age_s),
        lambda r: _down(r.age_s),
    ),
    _Column("engine", 11, _engine, _engine, is_number=False),
    _Column(
        "model",
        24,
        lambda r: (r.sample.model if r.sample else None) or formatting.UNKNOWN,
        lambda r: (r.sample.model if r.sample else None) or "",
        is_number=False,
    ),
)


class FleetTable(DataTable[Text]):
    """Sorted by the column that the user chose; the cursor stays on its server."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "enter",
            "select_cursor",
            "Open",
            id="fleet.open",
            tooltip="the selected server's dashboard; Esc comes back",
        ),
        Binding("j", "cursor_down", "Next server", id="fleet.next", show=False),
        Binding("k", "cursor_up", "Previous server", id="fleet.previous", show=False),
        Binding("g", "scroll_top", "First server", id="fleet.first", show=False),
        Binding("G", "scroll_bottom", "Last server", id="fleet.last", show=False),
        Binding("s,f6", "next_order", "Sort", id="fleet.sort", tooltip="sort by the next column"),
        Binding("S", "reverse", "Reverse", id="fleet.reverse", show=False),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, cursor_type="row", zebra_stripes=False, cell_padding=0)
        self._rows: Sequence[FleetRow] = ()
        self._order: int | None = None
        self._is_reversed = False
        self._note = ""
        self._name_width = COLUMNS[0].width
        self._shown: list[int] = []

    def on_mount(self) -> None:
        """The columns; names get what a wide terminal has left."""
        spare = self.app.size.width - sum(column.width for column in COLUMNS)
        self._name_width = COLUMNS[0].width + max(0, min(spare, _MOST_SPARE))
        for column, width in zip(COLUMNS, self._widths, strict=True):
            label = column.label.rjust(width - 1) if column.is_number else column.label
            self.add_column(Text(label), width=width)

    @property
    def _widths(self) -> list[int]:
        return [self._name_width, *(column.width for column in COLUMNS[1:])]

    @property
    def selected(self) -> int | None:
        """Number of the server under the cursor, in the order of `show_rows`."""
        return self._shown[self.cursor_row] if 0 <= self.cursor_row < len(self._shown) else None

    def show_rows(self, rows: Sequence[FleetRow], note: str = "") -> None:
        """Draw these servers; `note` goes into the title."""
        self._rows = rows
        self._note = note
        self._redraw()

    def action_next_order(self) -> None:
        """Sort by the next column; after the last one as they were named."""
        after = 0 if self._order is None else self._order + 1
        self._order = after if after < len(COLUMNS) else None
        self._redraw()

    def action_reverse(self) -> None:
        self._is_reversed = not self._is_reversed
        self._redraw()

    def _redraw(self) -> None:
        selected, row = self.selected, self.cursor_row
        numbers = self._sorted()
        for place, number in enumerate(numbers):
            self._draw_row(place, self._cells(self._rows[number]))
        self._shown = numbers
        if selected in numbers and numbers.index(selected) != row:
            self.move_cursor(row=numbers.index(selected), animate=False)
        by = "" if self._order is None else f" by {COLUMNS[self._order].label}"
        turned = ", reversed" if self._is_reversed else ""
        servers = "1 server" if len(numbers) == 1 else f"{len(numbers)} servers"
        self.border_title = f"{servers}{by}{turned} · {self._note}"

    def _draw_row(self, place: int, cells: list[Text]) -> None:
        if place >= self.row_count:
            self.add_row(*cells)
            return
        for column, old in enumerate(self.get_row_at(place)):
            if old != cells[column]:
                self.update_cell_at(Coordinate(place, column), cells[column])

    def _cells(self, row: FleetRow) -> list[Text]:
        pairs = zip(COLUMNS, self._widths, strict=True)
        return [_cell(column, width, row) for column, width in pairs]

    def _sorted(self) -> list[int]:
        numbers = list(range(len(self._rows)))
        if self._order is not None:
            order = COLUMNS[self._order].order
            numbers.sort(key=lambda number: order(self._rows[number]))
        return numbers[::-1] if self._is_reversed else numbers


def _cell(column: _Column, width: int, row: FleetRow) -> Text:
    words = column.text(row)
    if column is COLUMNS[0]:
        words = _without_middle(words, width - 1)
    text = Text(words, no_wrap=True, style=_style(column, row))
    text.truncate(width - 1, overflow="ellipsis")
    if column.is_number:
        text.align("right", width - 1)
    return text


def _style(column: _Column, row: FleetRow) -> str:
    """The worst row says so in its state as well: a colour alone is no message."""
    level = max((f.level for f in row.findings if f.name == column.reading), default=Level.OK)
    return ("", "bold yellow", "bold red")[level]


def _without_middle(name: str, length: int) -> str:
    """Servers of a fleet often differ in their beginning or their port, seldom between."""
    if len(name) <= length:
        return name
    end = length // 2
    return f"{name[: length - end - 1]}…{name[-end:]}"
