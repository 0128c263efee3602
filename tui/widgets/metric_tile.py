"""One number with its recent history under it."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text

from tui import formatting
from tui.history import Series, Snapshot
from tui.widgets.history_graph import graph_rows, peak
from tui.widgets.panel import Panel


class MetricTile(Panel):
    """`value` and `series` pick the number and its past out of a snapshot."""

    def __init__(
        self,
        title: str,
        value: Callable[[Snapshot], float | None],
        series: Callable[[Snapshot], Series],
        *,
        id: str,
    ) -> None:
        super().__init__(id=id)
        self.border_title = title
        self._value = value
        self._series = series

    def lines(self, width: int, height: int) -> list[Text]:
        """The number, the peak of what is drawn, and the graph."""
        value = self._value(self.snapshot) if self.snapshot else None
        series = self._series(self.snapshot) if self.snapshot else ()
        visible = series[-width:] if width > 0 else ()
        has_values = any(point is not None for point in visible)
        note = f"peak {formatting.rate(peak(visible))}" if has_values else ""
        number = formatting.rate(value)
        gap = " " * max(1, width - len(number) - len(note))
        head = Text.assemble(self.styled(number, "value"), gap, self.styled(note, "note"))
        graph = graph_rows(series, width, height - 1)
        return [head, *(self.styled(row, "graph") for row in graph)]
