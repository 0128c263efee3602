"""The end of the server's log, following it as it grows: the newest lines that fit, no scroll.

Requests that went well are left out, prefixes are cut, and the newest errors stay in sight.
"""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from typing import ClassVar

from rich.cells import chop_cells

from app.client.terminal_text import clean_line
from tui.messages import LogLinesArrived
from tui.state.log_text import LogLevel, is_routine, level_of, shortened
from tui.widgets.rows import Row, RowWidget, styled

_POLL_S = 0.25
_LAST_BYTES = 64 * 1024  # of what is there at first
_MOST_BYTES = 1024 * 1024  # of one look
_MOST_LINES = 200
_MOST_ERRORS = 2
_PARTS = {LogLevel.OTHER: "text", LogLevel.WARNING: "warning", LogLevel.ERROR: "error"}

_Line = tuple[str, LogLevel]


class LogPane(RowWidget):
    """Long lines continue on the next row, so that no part of an error is hidden."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"log--{part}" for part in (*_PARTS.values(), "note")}
    STYLES = "log"

    def __init__(self, path: Path) -> None:
        from logparse.reading.follow import (
            FollowedFile,  # a dashboard without a log needs no parser
        )

        super().__init__(id="log")
        self.border_title = "Server log"
        self.border_subtitle = path.name
        self.new_errors: list[str] = []
        """Errors that came while somebody watched, without those that were there before."""
        self._followed = FollowedFile(path, last_bytes=_LAST_BYTES, most_bytes=_MOST_BYTES)
        self._lines: deque[_Line] = deque(maxlen=_MOST_LINES)
        self._errors: deque[_Line] = deque(maxlen=_MOST_ERRORS)
        self._has_caught_up = False

    def on_mount(self) -> None:
        self.run_worker(self._follow(), exclusive=True)

    def on_unmount(self) -> None:
        self._followed.close()

    def read_new(self) -> list[str]:
        """Whole lines that have appeared, safe for the terminal."""
        return [clean_line(line) for line in self._followed.poll()]

    def take(self, lines: list[str]) -> None:
        for text in lines:
            level = level_of(text)
            if is_routine(text):
                continue
            line = (shortened(text, level), level)
            self._lines.append(line)
            if level is LogLevel.ERROR:
                self._errors.append(line)
                if self._has_caught_up:
                    self.new_errors.append(line[0].split(" E ", 1)[-1])
        self._has_caught_up = True
        self.redraw()

    def rows(self, width: int, height: int) -> list[Row]:
        """Filled from the bottom; errors that have scrolled away stand above the rest."""
        shown, found = self._from_the_end(width, height)
        gone = [error for error in self._errors if error not in shown]
        if not gone or height < 2 * _MOST_ERRORS + 1:
            return found
        above = [_rows(error, width)[0] for error in gone]
        return [*above, *found[-(height - len(above)) :]]

    def _from_the_end(self, width: int, height: int) -> tuple[list[_Line], list[Row]]:
        shown: list[_Line] = []
        found: list[Row] = []
        for line in reversed(self._lines):
            if len(found) >= height:
                break
            shown.append(line)
            found[:0] = _rows(line, width)
        return shown, found[-height:]

    async def _follow(self) -> None:
        while True:
            lines = await asyncio.to_thread(self.read_new)
            if lines:
                self.take(lines)
                self.post_message(LogLinesArrived(lines))
            await asyncio.sleep(_POLL_S)


def _rows(line: _Line, width: int) -> list[Row]:
    text, level = line
    pieces = chop_cells(text, max(1, width)) or [""]
    return [styled(piece, _PARTS[level]) for piece in pieces]
