"""A bordered box with a title that draws one Snapshot as text and can explain itself."""

from __future__ import annotations

import textwrap
from typing import ClassVar

from rich.text import Text
from textual.widget import Widget

from tui import formatting
from tui.history import Snapshot


class Panel(Widget, can_focus=True):
    """Base of the dashboard's boxes: keeps the snapshot and asks the subclass for its lines."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "panel--value",
        "panel--label",
        "panel--graph",
        "panel--note",
        "panel--past",
    }
    TITLE = ""
    READING: ClassVar[tuple[tuple[str, str], ...]] = ()

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, classes="panel")
        self.snapshot: Snapshot | None = None
        self.border_title = self.TITLE
        self.reading = self.READING

    def show(self, snapshot: Snapshot | None) -> None:
        """Draw another snapshot."""
        self.snapshot = snapshot
        self.refresh()

    def show_window(self, snapshot: Snapshot | None) -> None:
        """Say in the border which stretch of time is drawn."""
        self.border_subtitle = f"last {formatting.window(snapshot.window_s)}" if snapshot else ""

    def render(self) -> Text:
        """The lines joined, cut at the edge of the box."""
        return Text("\n", no_wrap=True, overflow="ellipsis").join(
            self.lines(self.size.width, self.size.height)
        )

    def lines(self, width: int, height: int) -> list[Text]:
        """The content for a box of this inner size."""
        raise NotImplementedError

    def styled(self, text: str, part: str) -> Text:
        """`text` in the style of `.panel--<part>`."""
        return Text(text, self.get_component_rich_style(f"panel--{part}"))

    def pair(self, label: str, value: str, width: int) -> Text:
        """A label at the left edge and a value at the right one."""
        room = max(1, width - len(label) - len(value))
        return Text.assemble(self.styled(label, "label"), " " * room, self.styled(value, "value"))

    def wrapped(self, text: str, width: int, height: int) -> list[Text]:
        """A note over several rows; what does not fit is left to the help."""
        rows = textwrap.wrap(text, max(8, width))[: max(0, height)]
        return [self.styled(row, "note") for row in rows]
