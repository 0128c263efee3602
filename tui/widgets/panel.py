"""A bordered box with a title that draws one Snapshot as text and can explain itself."""

from __future__ import annotations

import textwrap
from typing import ClassVar

from app.client import formatting
from app.client.thresholds import Level
from tui.state.history import Snapshot
from tui.widgets.rows import Row, RowWidget, styled

PARTS = {Level.OK: "value", Level.WARN: "warn", Level.ALARM: "alarm"}
"""The part of a panel whose style a reading of this level has."""


class Panel(RowWidget, can_focus=True):
    """Base of the dashboard's boxes: keeps the snapshot that the subclass draws."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "panel--value",
        "panel--label",
        "panel--graph",
        "panel--note",
        "panel--past",
        "panel--warn",
        "panel--alarm",
    }
    STYLES = "panel"
    TITLE = ""
    READING: ClassVar[tuple[tuple[str, str], ...]] = ()

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, classes="panel")
        self.snapshot: Snapshot | None = None
        self.border_title = self.TITLE
        self.reading = self.READING
        self._caption = ""

    def show(self, snapshot: Snapshot | None) -> None:
        self.snapshot = snapshot
        self.redraw()

    def show_window(self, snapshot: Snapshot | None) -> None:
        """Say in the border which stretch of time is drawn."""
        self.caption(f"last {formatting.window(snapshot.window_s)}" if snapshot else "")

    def caption(self, text: str) -> None:
        """Write into the lower border; to set a border paints the whole box again."""
        if text != self._caption:
            self._caption = self.border_subtitle = text


def pair(label: str, value: str, width: int, part: str = "value") -> Row:
    """A label at the left edge and a value at the right one."""
    room = max(1, width - len(label) - len(value))
    return styled(label, "label") + styled(" " * room + value, part)


def wrapped(text: str, width: int, height: int) -> list[Row]:
    """A note over several rows; what does not fit is left to the help."""
    return [styled(row, "note") for row in textwrap.wrap(text, max(8, width))[: max(0, height)]]
