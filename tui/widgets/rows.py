"""A widget that draws rows of styled pieces and paints again only the rows that have changed.

Knows no content. To make text anew every second is most of what a dashboard costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from app.client.terminal_text import one_line, strip_escapes

Row = tuple[tuple[str, str], ...]
"""The pieces of a line: a text, and the part of the widget whose style it has."""


def styled(text: str, part: str) -> Row:
    """A row of one piece; rows are put together with `+`."""
    return ((text, part),)


class RowWidget(Widget):
    """The subclass tells its rows, and calls `redraw` when they may have become others."""

    ALLOW_SELECT = False
    STYLES: ClassVar[str]
    """The style of the part `p` is that of the component class `<STYLES>--p`."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._rows: Sequence[Row] = ()
        self._rows_size: Size | None = None  # that they were made for; None if they are outdated
        self._part_styles: dict[str, Style] = {}

    def rows(self, width: int, height: int) -> Sequence[Row]:
        """The content of a box of this inner size."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Paint the rows that are not what they were."""
        size = self.size
        if not self.display or size != self._rows_size:
            self._rows_size = None
            self.refresh()
            return
        before = self._rows
        self._rows = self._filling(size)
        changed = [y for y, row in enumerate(self._rows) if row != before[y]]
        if changed:
            self.refresh(*(Region(0, y, size.width, 1) for y in changed))

    def render_line(self, y: int) -> Strip:
        """One row, with an ellipsis where it is cut."""
        size = self.size
        if size != self._rows_size:
            self._rows, self._rows_size = self._filling(size), size
        return self._strip(self._rows[y], size.width)

    def notify_style_update(self) -> None:
        """Another theme, or other classes."""
        self._part_styles.clear()
        super().notify_style_update()

    def _filling(self, size: Size) -> Sequence[Row]:
        """As many rows as there is room for."""
        rows = list(self.rows(*size))[: size.height]
        return [*rows, *[()] * (size.height - len(rows))]

    def _strip(self, row: Row, width: int) -> Strip:
        pieces = tuple((one_line(strip_escapes(text)), part) for text, part in row)
        if sum(cell_len(text) for text, _ in pieces) > width:
            pieces = _cut(pieces, width)
        return Strip([Segment(text, self._style(part)) for text, part in pieces])

    def _style(self, part: str) -> Style:
        found = self._part_styles.get(part)
        if found is None:
            found = self.get_component_rich_style(f"{self.STYLES}--{part}")
            self._part_styles[part] = found
        return found


def _cut(pieces: Row, width: int) -> Row:
    """As much as fits, with an ellipsis."""
    room = width - 1
    kept = []
    for text, part in pieces:
        if cell_len(text) > room:
            kept.append((f"{set_cell_size(text, room)}…", part))
            break
        kept.append((text, part))
        room -= cell_len(text)
    return tuple(kept)
