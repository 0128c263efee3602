"""The lines of a log: draws those that are visible and reads no others."""

from __future__ import annotations

import re
from array import array
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.events import Click
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tui.state.log_index import LineFilter, LogIndex
from tui.state.log_text import LogLevel, shortened

_ROOM_FOR_HEADERS = 110  # below it, most of a row would be process, date and file
_STYLES = {LogLevel.OTHER: "text", LogLevel.WARNING: "warning", LogLevel.ERROR: "error"}


class LogView(ScrollView, can_focus=True):
    """A cursor on one line; rows are the lines that the filter lets through."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"log--{part}" for part in ("text", "warning", "error", "number", "cursor", "found")
    }
    DEFAULT_CSS = """
    LogView { scrollbar-size-vertical: 1; scrollbar-size-horizontal: 1; }
    .log--text { color: $foreground; }
    .log--warning { color: $warning; }
    .log--error { color: $error; }
    .log--number { color: $foreground 45%; }
    .log--cursor { background: $primary 30%; text-style: bold; }
    .log--found { text-style: reverse; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup,ctrl+b", "page(-1)", "Page up", show=False),
        Binding("pagedown,space,ctrl+d", "page(1)", "Page down", show=False),
        Binding("home,g", "go(0)", "First line", id="log.first", show=False),
        Binding("end,G", "go(-1)", "Last line", id="log.last", show=False),
        Binding("left", "scroll_sideways(-20)", "Left", show=False),
        Binding("right", "scroll_sideways(20)", "Right", show=False),
    ]

    class CursorMoved(Message):
        """The cursor is on another line; `by_hand` is False when the log moved it."""

        def __init__(self, line: int | None, *, by_hand: bool) -> None:
            super().__init__()
            self.line = line
            self.by_hand = by_hand

    def __init__(self, index: LogIndex, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._index = index
        self._generation = index.generation
        self._rows: array[int] = array("I")
        self._num_seen = 0  # lines of the log that the filter has been asked about
        self._filter = LineFilter()
        self._cursor = 0
        self._needle = ""
        self._widest = 0

    # -- what is shown -------------------------------------------------------

    @property
    def line(self) -> int | None:
        """The number of the line under the cursor, from 0."""
        return self._rows[self._cursor] if self._cursor < len(self._rows) else None

    @property
    def num_rows(self) -> int:
        """Lines that the filter lets through."""
        return len(self._rows)

    @property
    def row(self) -> int:
        """Where the cursor is among them."""
        return self._cursor

    def show_filtered(self, wanted: LineFilter) -> None:
        """Other lines; the cursor stays as near as it can."""
        line = self.line
        self._filter = wanted
        self._rows = array("I")
        self._num_seen = 0
        self._take_new()
        self._move_to(self._index.row_at(self._rows, line or 0))

    def catch_up(self, *, follow: bool) -> None:
        """The index has grown, or began anew."""
        if self._generation != self._index.generation:
            self._generation, self._rows, self._num_seen = self._index.generation, array("I"), 0
            self._cursor = 0
        had_none = not self._rows
        self._take_new()
        if self._rows and (follow or had_none):
            self._move_to(len(self._rows) - 1 if follow else 0)
        self.refresh()

    def _take_new(self) -> None:
        new = self._index.select(self._filter, self._num_seen)
        self._num_seen = max(self._num_seen, self._index.num_lines)
        self._rows += new
        self._resize()

    def _resize(self) -> None:
        self.virtual_size = Size(self._gutter + self._widest, len(self._rows))

    @property
    def _gutter(self) -> int:
        return len(str(max(self._index.num_lines, 1000))) + 1

    # -- moving --------------------------------------------------------------

    def go_to_line(self, line: int) -> bool:
        """Put the cursor there; False when the filter hides that line."""
        row = self._index.row_at(self._rows, line)
        self._move_to(row, by_hand=True)
        return row < len(self._rows) and self._rows[row] == line

    def mark(self, needle: str) -> None:
        """Show where this text is."""
        self._needle = needle
        self.refresh()

    def find(self, needle: str, step: int) -> int | None:
        """The next row with this text, around the end if need be. Reads files: not for the screen.

        What is shown may have changed when it returns; a row that is gone is the last one then.
        """
        rows, cursor = self._rows, self._cursor
        if not needle or not rows:
            return None
        row = self._index.find(needle, rows, cursor, step)
        return (
            row
            if row is not None
            else self._index.find(needle, rows, -1 if step > 0 else len(rows), step)
        )

    def go_to_row(self, row: int) -> None:
        self._move_to(row, by_hand=True)

    def action_move(self, rows: int) -> None:
        self._move_to(self._cursor + rows, by_hand=True)

    def action_page(self, pages: int) -> None:
        self._move_to(self._cursor + pages * max(1, self._height - 1), by_hand=True)

    def action_go(self, row: int) -> None:
        """To the first line, or with -1 to the last."""
        self._move_to(row if row >= 0 else len(self._rows) - 1, by_hand=True)

    def action_scroll_sideways(self, columns: int) -> None:
        """To the parts of long lines."""
        self.scroll_to(x=self.scroll_offset.x + columns, animate=False)

    def on_click(self, event: Click) -> None:
        """The line that was clicked."""
        self._move_to(self.scroll_offset.y + event.y, by_hand=True)

    @property
    def _height(self) -> int:
        return self.scrollable_content_region.height

    def _move_to(self, row: int, *, by_hand: bool = False) -> None:
        self._cursor = max(0, min(row, len(self._rows) - 1))
        top, height = self.scroll_offset.y, self._height
        if self._cursor < top or self._cursor >= top + height:
            is_far = not top - height <= self._cursor < top + 2 * height
            above = height // 2 if is_far else 0 if self._cursor < top else height - 1
            self.scroll_to(y=self._cursor - above, animate=False, force=True, immediate=True)
        self.refresh()
        self.post_message(self.CursorMoved(self.line, by_hand=by_hand))

    # -- drawing -------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        """One row of the screen."""
        width = self.size.width
        row = self.scroll_offset.y + y
        base = self.rich_style
        if row >= len(self._rows):
            return Strip.blank(width, base)
        line = self._rows[row]
        text = self._index.text(line)
        if width < _ROOM_FOR_HEADERS:
            # The line as it stands is shown below the list.
            text = shortened(text, self._index.level(line))
        self._note_width(cell_len(text))
        number = self._part("number")
        mark = "▸" if row == self._cursor else " "  # seen without colours too
        gutter = Segment(f"{line + 1:>{self._gutter - 1}}{mark}", number)
        style = self._part(_STYLES[self._index.level(line)])
        shift, room = self.scroll_offset.x, max(0, width - self._gutter)
        body = Strip(self._marked(text, style)).crop(shift, shift + room)
        strip = Strip.join([Strip([gutter]), body]).adjust_cell_length(width, base)
        if row == self._cursor:
            return strip.apply_style(self.get_component_rich_style("log--cursor", partial=True))
        return strip

    def _part(self, name: str) -> Style:
        return self.get_component_rich_style(f"log--{name}")

    def _note_width(self, width: int) -> None:
        if width > self._widest:
            self._widest = width
            self.call_later(self._resize)

    def _marked(self, text: str, style: Style) -> list[Segment]:
        """The text with what is searched for marked."""
        if not self._needle:
            return [Segment(text, style)]
        found = style + self.get_component_rich_style("log--found", partial=True)
        parts = re.split(f"({re.escape(self._needle)})", text, flags=re.IGNORECASE)
        return [Segment(part, found if place % 2 else style) for place, part in enumerate(parts)]
