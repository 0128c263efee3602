"""Shows a server's start as phases with times: live on a terminal, one line per phase elsewhere.

Beside them stands what earlier starts took; bars are drawn on a terminal only.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.client import formatting
from app.output import printable, say, talk_console
from app.watch.readiness import waited_for
from logparse import Event, PhaseFinished, PhaseStarted, ProgressMade

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.table import Table

    from app.watch.start_history import StartTimes

_REFRESH_PER_S = 8
_BAR_COLUMNS = 24


@dataclass(slots=True)
class _Row:
    """One phase on the screen; times are our own monotonic clock, finer than the log's seconds."""

    name: str
    began: float
    ended: float | None = None
    detail: str = ""
    bar: ProgressMade | None = None
    waits: str = ""  # for another start, as long as the phase goes on

    def seconds(self) -> float:
        return (self.ended or time.monotonic()) - self.began


class StartView:
    """Context manager around the wait for readiness; feed it the events as they come."""

    def __init__(self, title: str, typical: StartTimes | None = None) -> None:
        usual = "" if typical is None else f" (usually {formatting.age(typical.total_s)})"
        self._title = title + usual
        self._typical = typical
        self._began = time.monotonic()
        self._rows: list[_Row] = []
        self._live: Live | None = None
        self._is_closed = False

    def __enter__(self) -> StartView:
        if sys.stderr.isatty():
            from rich.live import Live

            self._live = Live(
                get_renderable=self._table,
                console=talk_console(),
                refresh_per_second=_REFRESH_PER_S,
            )
            self._live.start()
        else:
            say(self._title)
        return self

    def __exit__(self, *_: object) -> None:
        self.close("not finished")

    def close(self, note: str = "") -> None:
        """Draw no more; a phase that still runs ends here, with this note."""
        if self._is_closed:
            return
        self._is_closed = True
        self._finish_running(note)
        if self._live is not None:
            self._live.stop()

    def show(self, events: tuple[Event, ...]) -> None:
        """Take what the log has told."""
        for event in events:
            if isinstance(event, PhaseStarted):
                self._finish_running()
                # The first phase includes the time until the process could say something.
                began = time.monotonic() if self._rows else self._began
                self._rows.append(_Row(event.name, began))
            elif isinstance(event, PhaseFinished):
                self._finish(event.name)
            elif isinstance(event, ProgressMade) and self._rows:
                self._rows[-1].bar = event
            elif (pid := waited_for(event)) is not None:
                self._wait(f"waits for process {pid}, which measures memory")

    def _wait(self, text: str) -> None:
        if self._live is None:
            say(f"  {text}")
        elif self._rows:
            self._rows[-1].waits = text

    def phase_seconds(self) -> dict[str, float]:
        """How long each phase took that is over."""
        return {row.name: row.seconds() for row in self._rows if row.ended is not None}

    def _finish_running(self, note: str = "") -> None:
        for row in self._rows:
            if row.ended is None:
                self._finish(row.name, note)

    def _finish(self, name: str, note: str = "") -> None:
        for row in self._rows:
            if row.name == name and row.ended is None:
                row.ended, row.detail, row.bar = time.monotonic(), note, None
                if self._live is None:
                    say(f"  {row.name:<34} {row.seconds():6.1f} s  {note}".rstrip())

    def _table(self) -> Table:
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 1))
        table.add_row("", Text(self._title), Text(formatting.age(time.monotonic() - self._began)))
        for row in self._rows:
            mark = Spinner("line") if row.ended is None else Text("-" if row.detail else "+")
            time_text = Text(formatting.age(row.seconds()))
            table.add_row(mark, Text(row.name), time_text, self._beside(row))
        return table

    def _beside(self, row: _Row) -> RenderableType:
        """The bar that moves now, else what the phase usually takes."""
        from rich.text import Text

        if row.bar is not None and row.bar.total > 0:
            return _bar(row.bar)
        if row.ended is None and row.waits:
            return Text(row.waits)
        usual_s = None if self._typical is None else self._typical.phases.get(row.name)
        if row.ended is None and usual_s is not None:
            return Text(f"usually {formatting.age(usual_s)}", style="dim")
        return Text(row.detail)


def _bar(event: ProgressMade) -> Table:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    line = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=event.total, completed=event.done, width=_BAR_COLUMNS)
    line.add_row(bar, Text(printable(f"{event.done}/{event.total} {event.text}")))
    return line
