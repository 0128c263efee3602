"""The engine's live requests, or llama-server's slots: sorted, filtered, with one selected.

Asks for a cancellation or for details; does neither itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.widgets import DataTable

from app.client import formatting
from app.client.debug.documents import DebugSample, LiveRequest
from app.client.metrics.slots import Slot
from tui.messages import CancelAsked, DetailsAsked, FilterAsked, NextEngineAsked

MAX_ROWS = 200
_COLUMNS = (
    ("state", 11),
    ("age", 9),
    ("prompt", 13),
    ("output", 12),
    ("TTFT", 9),
    ("tok/s", 7),
    ("blocks", 8),
    ("cached", 8),
)
_WIDE_ONLY = ("blocks", "cached")
_WIDE = 110
_LONGEST_ID = 17
_LAST = "request"


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One request or slot as it is shown. `key` names it, `words` are searched."""

    key: str
    cells: tuple[str, ...]
    sizes: tuple[float, ...]  # by _ORDERS, after the first
    words: str
    can_be_cancelled: bool


_ORDERS = (
    *("the engine's order", "age", "prompt", "output"),
    *("TTFT", "tok/s", "blocks", "cached"),
)


class RequestTable(DataTable[Text]):
    """One row per request; the largest comes first unless reversed."""

    READING: ClassVar[tuple[tuple[str, str], ...]] = (
        ("waiting 3", "third in the queue"),
        ("prompt", "prompt tokens computed, of all"),
        ("output", "tokens generated, of at most"),
        ("TTFT, tok/s", "arrival to first token; tokens a second since then, of this request"),
        ("blocks", "KV blocks that the request holds; llama-server's slots hold tokens"),
        ("cached", "prompt tokens that were in the prefix cache"),
        ("filter", "rows that have the text in state, id or client; !text: those without it"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "cursor_down", "Next request", id="requests.next", show=False),
        Binding("k", "cursor_up", "Previous request", id="requests.previous", show=False),
        Binding("g", "scroll_top", "First request", id="requests.first", show=False),
        Binding("G", "scroll_bottom", "Last request", id="requests.last", show=False),
        Binding(
            "enter,d",
            "ask_details",
            "Trace",
            id="requests.trace",
            tooltip="the selected request's walk through the engine, with times",
        ),
        Binding(
            "e",
            "next_engine",
            "Next engine",
            id="requests.engine",
            show=False,
            tooltip="scheduler and blocks of the next replica of a data-parallel server",
        ),
        Binding(
            "s,f6", "next_order", "Sort", id="requests.sort", tooltip="sort by the next column"
        ),
        Binding("S", "reverse", "Reverse", id="requests.reverse", show=False),
        Binding(
            "slash", "ask_filter", "Filter", id="requests.filter", tooltip="show some requests only"
        ),
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
        self._rows: list[RequestRow] = []
        self._total: int | None = None
        self._order = 0
        self._is_reversed = False
        self._filter = ""
        self._shown: list[RequestRow] = []
        self._what = "Requests"
        self._places: list[int] = []
        self.border_title = self._what

    def on_mount(self) -> None:
        self._make_columns(self.app.size.width)

    def on_resize(self) -> None:
        """A narrow screen has no room for all columns."""
        if self._places and len(self._places) != len(_columns_for(self.app.size.width)):
            self._make_columns(self.app.size.width)
            self._shown = []
            self._redraw()

    def _make_columns(self, width: int) -> None:
        self.clear(columns=True)
        self._places = _columns_for(width)
        for place in self._places:
            label, column_width = _COLUMNS[place]
            text = Text(label) if label == "state" else Text(label.rjust(column_width))
            self.add_column(text, width=column_width)
        self.add_column(f"  {_LAST}")

    @property
    def selected(self) -> str | None:
        """Id of the request under the cursor."""
        row = self._selected_row()
        return row.key if row else None

    def show_sample(self, sample: DebugSample | None) -> None:
        """Draw another sample; the cursor stays on its request."""
        self._what = "Requests"
        self._rows = [_request_row(request) for request in sample.requests] if sample else []
        self._total = len(sample.requests) + sample.num_not_listed if sample else None
        self._redraw()

    def show_slots(self, slots: Sequence[Slot], trouble: str = "") -> None:
        """Draw llama-server's slots, or say why there are none to draw."""
        self._what = f"Slots n/a ({trouble})" if trouble else "Slots"
        self._rows = [_slot_row(slot) for slot in slots]
        self._total = len(slots)
        self._redraw()

    def set_filter(self, text: str) -> None:
        """Show the rows that have the text, or with `!` those that have it not."""
        self._filter = text.strip()
        self._redraw()

    def action_next_order(self) -> None:
        """Sort by the next column."""
        self._order = (self._order + 1) % len(_ORDERS)
        self._redraw()

    def action_reverse(self) -> None:
        self._is_reversed = not self._is_reversed
        self._redraw()

    def action_ask_cancel(self) -> None:
        """Ask for the selected request's end."""
        self._ask(CancelAsked, "llama-server has no endpoint that ends a request.")

    def action_ask_details(self) -> None:
        """Ask for the selected request's walk."""
        self._ask(DetailsAsked, "llama-server does not tell the times of a request.")

    def action_next_engine(self) -> None:
        """Ask for the next replica's state."""
        self.post_message(NextEngineAsked())

    def action_ask_filter(self) -> None:
        """Ask for a text to filter by."""
        self.post_message(FilterAsked())

    def _ask(self, question: type[CancelAsked] | type[DetailsAsked], refusal: str) -> None:
        """Post the question about the selected request, where its engine has an answer."""
        row = self._selected_row()
        if row is not None and row.can_be_cancelled:
            self.post_message(question(row.key))
        elif row is not None:
            self.notify(refusal)

    def _selected_row(self) -> RequestRow | None:
        return self._shown[self.cursor_row] if self.cursor_row < len(self._shown) else None

    def _redraw(self) -> None:
        rows = self._sorted()[:MAX_ROWS]
        keys = [row.key for row in rows]
        if keys == [row.key for row in self._shown]:
            self._shown = rows
            self._update(rows)
        else:
            selected, cursor = self.selected, self.cursor_row
            self._shown = rows
            self.clear()
            for row in rows:
                self.add_row(*_texts(row, self._places), key=row.key)
            cursor = keys.index(selected) if selected in keys else min(cursor, len(keys) - 1)
            self.move_cursor(row=max(0, cursor), animate=False)
        self._title()

    def _update(self, rows: list[RequestRow]) -> None:
        for number, row in enumerate(rows):
            cells = _texts(row, self._places)
            for column, old in enumerate(self.get_row_at(number)):
                if old.plain != cells[column].plain:
                    self.update_cell_at(Coordinate(number, column), cells[column])

    def _sorted(self) -> list[RequestRow]:
        rows = [row for row in self._rows if _matches(row, self._filter)]
        if self._order:
            rows.sort(key=lambda row: -row.sizes[self._order - 1])
        return rows[::-1] if self._is_reversed else rows

    def _title(self) -> None:
        turned = ", reversed" if self._is_reversed else ""
        only = f", only {self._filter}" if self._filter else ""
        title = f"{self._what} by {_ORDERS[self._order]}{turned}{only}"
        self.border_title = title.replace("[", "(")
        shown = len(self._shown)
        self.border_subtitle = "n/a" if self._total is None else f"{shown:,} of {self._total:,}"


def _matches(row: RequestRow, text: str) -> bool:
    wanted = text.removeprefix("!").lower()
    return (wanted in row.words.lower()) != (text.startswith("!") and bool(wanted))


def _columns_for(width: int) -> list[int]:
    """Places in _COLUMNS of those that fit."""
    has_room = width >= _WIDE
    return [n for n, (label, _) in enumerate(_COLUMNS) if has_room or label not in _WIDE_ONLY]


def _texts(row: RequestRow, places: Sequence[int]) -> list[Text]:
    numbers = [row.cells[place].rjust(_COLUMNS[place][1]) for place in places[1:]]
    return [Text(row.cells[0]), *map(Text, numbers), Text(f"  {row.cells[-1]}")]


def _short(request_id: str) -> str:
    """Enough to tell it from the others; the details have all of it."""
    return request_id if len(request_id) <= _LONGEST_ID else f"{request_id[: _LONGEST_ID - 1]}…"


def _request_row(request: LiveRequest) -> RequestRow:
    place = f" {request.place}" if request.place is not None else ""
    cached = "-" if request.cached_tokens is None else f"{request.cached_tokens:,}"
    name = _short(request.id)
    name += f"  {request.client}" if request.client else ""
    return RequestRow(
        key=request.id,
        cells=(
            f"{request.state}{place}",
            formatting.age(request.age_s),
            f"{request.prompt_tokens_done:,}/{request.prompt_tokens:,}",
            f"{request.output_tokens:,}/{request.max_tokens:,}",
            formatting.seconds(request.first_token_s),
            formatting.rate(request.tokens_per_s),
            f"{request.blocks:,}",
            cached,
            name,
        ),
        sizes=(
            request.age_s,
            request.prompt_tokens,
            request.output_tokens,
            request.first_token_s or 0.0,
            request.tokens_per_s or 0.0,
            request.blocks,
            request.cached_tokens or 0,
        ),
        words=f"{request.state} {request.id} {request.client or ''}",
        can_be_cancelled=True,
    )


def _slot_row(slot: Slot) -> RequestRow:
    state = "busy" if slot.is_busy else "free"
    held = formatting.count(slot.tokens_held)
    task = f"slot {slot.number}, {held} of {slot.num_context_tokens:,} tokens"
    task += f", task {slot.task}" if slot.task is not None else ""
    return RequestRow(
        key=f"slot {slot.number}",
        cells=(
            state,
            "-",
            _of(slot.prompt_tokens_done, slot.prompt_tokens),
            _of(slot.output_tokens, slot.max_tokens),
            formatting.UNKNOWN,
            formatting.UNKNOWN,
            formatting.UNKNOWN,
            formatting.count(slot.cached_tokens),
            task,
        ),
        sizes=(
            0.0,
            slot.prompt_tokens or 0,
            slot.output_tokens or 0,
            0.0,
            0.0,
            0.0,
            slot.cached_tokens or 0,
        ),
        words=f"{state} {task}",
        can_be_cancelled=False,
    )


def _of(done: int | None, total: int | None) -> str:
    if done is None:
        return formatting.UNKNOWN
    return f"{done:,}" if total is None else f"{done:,}/{total:,}"
