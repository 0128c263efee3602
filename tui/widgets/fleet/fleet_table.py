"""One line per server: state, engine, model, load, cache, speed, latency, errors, age."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.widgets import DataTable

from app.client.thresholds import Level
from tui.state.fleet import COLUMNS, FleetColumn, FleetRow

_MOST_SPARE = 20


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


def _cell(column: FleetColumn, width: int, row: FleetRow) -> Text:
    words = column.text(row)
    if column is COLUMNS[0]:
        words = _without_middle(words, width - 1)
    text = Text(words, no_wrap=True, style=_style(column, row))
    text.truncate(width - 1, overflow="ellipsis")
    if column.is_number:
        text.align("right", width - 1)
    return text


def _style(column: FleetColumn, row: FleetRow) -> str:
    """The worst row says so in its state as well: a colour alone is no message."""
    level = max((f.level for f in row.findings if f.name == column.reading), default=Level.OK)
    return ("", "bold yellow", "bold red")[level]


def _without_middle(name: str, length: int) -> str:
    """Servers of a fleet often differ in their beginning or their port, seldom between."""
    if len(name) <= length:
        return name
    end = length // 2
    return f"{name[: length - end - 1]}…{name[-end:]}"
