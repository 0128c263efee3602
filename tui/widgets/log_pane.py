"""The end of the server's log, following it as it grows: the newest lines that fit, no scroll."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path

from rich.cells import chop_cells
from rich.style import Style
from rich.text import Text
from textual.widget import Widget

from tui.messages import LogLinesArrived
from tui.tailer import LogTailer

_POLL_S = 0.25
_MOST_LINES = 200
# Level words as vLLM, our engine and llama-server write them; the word itself stays readable.
_LEVEL_STYLES = (("ERROR", "bold"), ("CRITICAL", "bold"), ("WARNING", "italic"))


class LogPane(Widget):
    """Long lines continue on the next row, so that no part of an error is hidden."""

    def __init__(self, path: Path) -> None:
        super().__init__(id="log")
        self.border_title = "Server log"
        self.border_subtitle = path.name
        self._tailer = LogTailer(path)
        self._lines: deque[str] = deque(maxlen=_MOST_LINES)

    def on_mount(self) -> None:
        """Start to follow."""
        self.run_worker(self._follow(), exclusive=True)

    def on_log_lines_arrived(self, message: LogLinesArrived) -> None:
        """Append and draw."""
        self._lines.extend(message.lines)
        self.refresh()

    def render(self) -> Text:
        """Fill the pane from the bottom."""
        rows: list[Text] = []
        for line in reversed(self._lines):
            if len(rows) >= self.size.height:
                break
            rows[:0] = _rows(line, self.size.width)
        return Text("\n", no_wrap=True).join(rows[-self.size.height :])

    async def _follow(self) -> None:
        while True:
            lines = await asyncio.to_thread(self._tailer.read_new)
            if lines:
                self.post_message(LogLinesArrived(lines))
            await asyncio.sleep(_POLL_S)


def _rows(line: str, width: int) -> list[Text]:
    level_style = next((style for word, style in _LEVEL_STYLES if word in line), "")
    style = Style.parse(level_style) if level_style else Style.null()
    return [Text(row, style) for row in chop_cells(line, max(1, width))] or [Text()]
