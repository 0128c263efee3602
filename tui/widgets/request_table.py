"""The engine's live requests, sorted, with one selected; asks for a cancellation, does none."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.widgets import DataTable

from app.client.debug import DebugSample, LiveRequest
from tui import formatting
from tui.messages import CancelAsked

MAX_ROWS = 200
_Key = Callable[[LiveRequest], float]
_ORDERS: tuple[tuple[str, _Key | None], ...] = (
    ("the engine's order", None),
    ("age", lambda request: -request.age_s),
    ("prompt", lambda request: -request.prompt_tokens),
    ("output", lambda request: -request.output_tokens),
    ("blocks", lambda request: -request.blocks),
    ("cached", lambda request: -(request.cached_tokens or 0)),
)
_WIDTHS = (9, 13, 12, 8, 8)
_COLUMNS = ("age", "prompt", "output", "blocks", "cached")


class RequestTable(DataTable[Text]):
    """One row per request; the largest comes first unless reversed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "cursor_down", "Next request", id="requests.next", show=False),
        Binding("k", "cursor_up", "Previous request", id="requests.previous", show=False),
        Binding("g", "scroll_top", "First request", id="requests.first", show=False),
        Binding("G", "scroll_bottom", "Last request", id="requests.last", show=False),
        Binding(
            "s,f6", "next_order", "Sort", id="requests.sort", tooltip="sort by the next column"
        ),
        Binding("S", "reverse", "Reverse", id="requests.reverse", show=False),
        Binding(
            "x,f9,ctrl+k",
            "ask_cancel",
            "Cancel",
            id="requests.cancel",
            tooltip="cancel the selected request",
        ),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, cursor_type="row", zebra_stripes=False, cell_padding=0)
        self._sample: DebugSample | None = None
        self._order = 0
        self._is_reversed = False
        self._shown: list[str] = []
        self.border_title = "Requests"

    def on_mount(self) -> None:
        """The columns."""
        self.add_column("state", width=12)
        for label, width in zip(_COLUMNS, _WIDTHS, strict=True):
            self.add_column(Text(label.rjust(width)), width=width)
        self.add_column("  request")

    @property
    def selected(self) -> str | None:
        """Id of the request under the cursor."""
        return self._shown[self.cursor_row] if self.cursor_row < len(self._shown) else None

    def show_sample(self, sample: DebugSample | None) -> None:
        """Draw another sample; the cursor stays on its request."""
        self._sample = sample
        self._redraw()

    def action_next_order(self) -> None:
        """Sort by the next column."""
        self._order = (self._order + 1) % len(_ORDERS)
        self._redraw()

    def action_reverse(self) -> None:
        """Turn the order round."""
        self._is_reversed = not self._is_reversed
        self._redraw()

    def action_ask_cancel(self) -> None:
        """Ask for the selected request's end."""
        if self.selected is not None:
            self.post_message(CancelAsked(self.selected))

    def _redraw(self) -> None:
        requests = self._sorted()[:MAX_ROWS]
        ids = [request.id for request in requests]
        rows = [_cells(request) for request in requests]
        if ids == self._shown:
            self._update(rows)
        else:
            selected, row = self.selected, self.cursor_row
            self._shown = ids
            self.clear()
            for request, cells in zip(requests, rows, strict=True):
                self.add_row(*cells, key=request.id)
            row = ids.index(selected) if selected in ids else min(row, max(0, len(ids) - 1))
            self.move_cursor(row=row, animate=False)
        self._title()

    def _update(self, rows: list[list[Text]]) -> None:
        for number, cells in enumerate(rows):
            for column, old in enumerate(self.get_row_at(number)):
                if old.plain != cells[column].plain:
                    self.update_cell_at(Coordinate(number, column), cells[column])

    def _sorted(self) -> list[LiveRequest]:
        requests = list(self._sample.requests) if self._sample else []
        key = _ORDERS[self._order][1]
        if key is not None:
            requests.sort(key=key)
        return requests[::-1] if self._is_reversed else requests

    def _title(self) -> None:
        name = _ORDERS[self._order][0]
        turned = ", reversed" if self._is_reversed else ""
        self.border_title = f"Requests by {name}{turned}"
        sample = self._sample
        total = len(sample.requests) + sample.num_not_listed if sample else None
        shown = len(self._shown)
        self.border_subtitle = "n/a" if total is None else f"{shown:,} of {total:,}"


def _cells(request: LiveRequest) -> list[Text]:
    place = f" {request.place}" if request.place is not None else ""
    cached = "-" if request.cached_tokens is None else f"{request.cached_tokens:,}"
    numbers = (
        formatting.age(request.age_s),
        f"{request.prompt_tokens_done:,}/{request.prompt_tokens:,}",
        f"{request.output_tokens:,}/{request.max_tokens:,}",
        f"{request.blocks:,}",
        cached,
    )
    return [
        Text(f"{request.state}{place}"),
        *(Text(text.rjust(width)) for text, width in zip(numbers, _WIDTHS, strict=True)),
        Text(f"  {request.id}"),
    ]
