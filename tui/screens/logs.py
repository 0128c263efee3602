"""The screen of one log: phases, lines, the line under the cursor, search and filters."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Input, Static

from logparse import LogReport, explain
from logparse.report.line_meaning import explain_line
from tui.screens.help import HelpScreen
from tui.state.log_index import LineFilter, LogIndex
from tui.state.log_text import LogLevel
from tui.widgets.key_bar import KeyBar
from tui.widgets.logs.log_view import LogView
from tui.widgets.logs.phase_list import PhaseList

_POLL_S = 0.25
_TELL_EVERY_S = 0.2
_PAUSE_S = 0.003  # after each piece, so that a key never waits for the reader
_LEVEL_NAMES = {
    LogLevel.OTHER: "all levels",
    LogLevel.WARNING: "warnings and errors",
    LogLevel.ERROR: "errors",
}


LOG_READING = (
    ("phases", "✓ over, … not finished, ✗ failed; a click shows the lines of one"),
    ("colours", "errors and their tracebacks, warnings; the words of the line say it too"),
    ("below", "the whole line under the cursor, and what it means if a rule knows it"),
    ("cause", "under the line that failed: why, and each thing to do about it"),
)


class LogGrew(Message):
    """More of the log was read; `is_at_end` when nothing is left to read now."""

    def __init__(self, report: LogReport, *, is_at_end: bool) -> None:
        super().__init__()
        self.report = report
        self.is_at_end = is_at_end


class LogScreen(Screen[None]):
    """Opens at once: a thread reads the file, and what it has read can be looked at."""

    AUTO_FOCUS = "LogView"
    DEFAULT_CSS = """
    LogScreen { layout: vertical; }
    #log-body { height: 1fr; }
    #log-phases { width: 26; }
    LogScreen.-wide #log-phases { width: 36; }
    #log-lines { width: 1fr; }
    #log-detail {
        height: auto; min-height: 5; max-height: 12; padding: 0 1; border-top: solid $border;
    }
    #log-search { display: none; height: 1; border: none; padding: 0 1; background: $surface; }
    #log-search.-open { display: block; }
    #log-status { height: 1; padding: 0 1; background: $panel; }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012 - as in Screen
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "search", "Search", id="log.search", tooltip="search; Enter goes there"),
        Binding("n", "next(1)", "Next", id="log.next", tooltip="next line that was searched for"),
        Binding("N", "next(-1)", "Previous", id="log.previous", show=False,
                tooltip="previous line that was searched for"),
        Binding("c", "cause", "Cause", id="log.cause",
                tooltip="go to the line that failed; below it why, and what to do"),
        Binding("w", "level", "Level", id="log.level",
                tooltip="all levels, warnings and errors, errors only"),
        Binding("p", "process", "Process", id="log.process", tooltip="lines of one process"),
        *(
            Binding(str(number), f"phase({number})", "Phase" if number == 1 else "",
                    id=f"log.phase-{number}", show=number == 1, key_display="1-5",
                    tooltip="lines of one phase; again: of all")
            for number in range(1, 6)
        ),
        Binding("0,escape", "everything", "All", id="log.all", show=False,
                tooltip="no filter: every line"),
        Binding("f", "follow", "Follow", id="log.follow", tooltip="stay at the end as it grows"),
    ]  # fmt: skip

    def __init__(self, index: LogIndex, title: str, *, is_following: bool = False) -> None:
        super().__init__()
        self._index = index
        self._title = title
        self._filter = LineFilter()
        self._report: LogReport | None = None
        self._is_read = False
        self._is_following = is_following
        self._needle = ""
        self._ended = threading.Event()

    def compose(self) -> ComposeResult:
        """Phases and lines, below them what is known of one line."""
        with Horizontal(id="log-body"):
            yield PhaseList(id="log-phases")
            yield LogView(self._index, id="log-lines")
        yield Static(id="log-detail", markup=False)
        yield Input(placeholder="search", id="log-search", compact=True)
        yield Static(id="log-status", markup=False)
        yield KeyBar()

    def on_mount(self) -> None:
        self.run_worker(self._read, thread=True, name="log reader")

    def on_unmount(self) -> None:
        """The thread ends with the screen."""
        self._ended.set()

    def _read(self) -> None:
        """Runs in the worker's thread: grows the index and tells the screen."""
        told_at, is_new = 0.0, True
        while not self._ended.is_set():
            if self._index.grow():
                is_new = True
                if time.monotonic() - told_at > _TELL_EVERY_S:
                    self._tell(is_at_end=False)
                    told_at = time.monotonic()
                self._ended.wait(_PAUSE_S)
                continue
            if is_new:
                self._tell(is_at_end=True)
                is_new = False
            self._ended.wait(_POLL_S)

    def _tell(self, *, is_at_end: bool) -> None:
        self.post_message(LogGrew(self._index.report(), is_at_end=is_at_end))

    # -- messages ------------------------------------------------------------

    def on_log_grew(self, message: LogGrew) -> None:
        self._report, self._is_read = message.report, message.is_at_end
        self._lines.catch_up(follow=self._is_following)
        self._show_state()

    def on_log_view_cursor_moved(self, message: LogView.CursorMoved) -> None:
        """Explain the line; who moves by hand wants to read, not to follow."""
        if message.by_hand:
            self._is_following = False
        self.query_one("#log-detail", Static).update(self._detail(message.line))
        self._show_status()

    def on_phase_list_phase_chosen(self, message: PhaseList.PhaseChosen) -> None:
        self.action_phase(message.phase)

    def on_input_submitted(self, message: Input.Submitted) -> None:
        """Search from the cursor on."""
        self._needle = message.value
        self._close_search()
        if self._needle:
            self.action_next(1)

    # -- actions -------------------------------------------------------------

    def action_search(self) -> None:
        field = self.query_one("#log-search", Input)
        field.add_class("-open")
        field.value = self._needle
        field.focus()

    def action_next(self, step: int) -> None:
        """The next or previous line with the text."""
        if not self._needle:
            self.action_search()
            return
        self._lines.mark(self._needle)
        self.run_worker(self._find(self._needle, step), name="search", exclusive=True)

    async def _find(self, needle: str, step: int) -> None:
        """In a thread: a log of gigabytes takes seconds, and the screen must not."""
        row = await asyncio.to_thread(self._lines.find, needle, step)
        if row is None:
            self.notify(f"not in these lines: {needle}", markup=False)
        else:
            self._lines.go_to_row(row)

    def action_cause(self) -> None:
        """To the line that the explanation names, whatever the filter hides."""
        problem = self._index.report().problem
        if problem is None:
            read = "" if self._is_read else " yet; it is still being read"
            self.notify(f"no cause of a failure in this log{read}")
            return
        if not self._lines.go_to_line(problem.key_line_number - 1):
            self._apply(LineFilter())
            self._lines.go_to_line(problem.key_line_number - 1)

    def action_level(self) -> None:
        """The next of the three."""
        levels = list(LogLevel)
        after = levels[(levels.index(self._filter.level) + 1) % len(levels)]
        self._apply(replace(self._filter, level=after))

    def action_process(self) -> None:
        """The next process, after the last one all of them."""
        choices = (None, *self._index.processes)
        now = self._filter.process
        at = choices.index(now) if now in choices else 0
        self._apply(replace(self._filter, process=choices[(at + 1) % len(choices)]))

    def action_phase(self, phase: int) -> None:
        """One phase, or all again."""
        self._apply(replace(self._filter, phase=None if self._filter.phase == phase else phase))

    def action_everything(self) -> None:
        """Out of the search field, else without a filter."""
        if self.query_one("#log-search").has_class("-open"):
            self._close_search()
        else:
            self._apply(LineFilter())

    def action_follow(self) -> None:
        """Stay at the end, or no longer."""
        following = not self._is_following
        if following:
            self._lines.action_go(-1)
        # The cursor's own message, which comes later, must not end it again.
        self.call_after_refresh(self._set_following, following)

    # -- showing -------------------------------------------------------------

    @property
    def _lines(self) -> LogView:
        return self.query_one(LogView)

    def _set_following(self, following: bool) -> None:
        self._is_following = following
        self._show_status()

    def _close_search(self) -> None:
        self.query_one("#log-search").remove_class("-open")
        self._lines.focus()

    def _apply(self, wanted: LineFilter) -> None:
        self._filter = wanted
        self._lines.show_filtered(wanted)
        self._show_state()

    def _show_state(self) -> None:
        self.query_one(PhaseList).show(self._report, self._filter.phase)
        self._show_status()

    def _show_status(self) -> None:
        self.query_one("#log-status", Static).update(self._status())

    def _status(self) -> str:
        lines, total = self._lines, self._index.num_lines
        rows = lines.num_rows
        place = f"{lines.row + 1 if rows else 0:,} of {rows:,}"
        parts = [
            f"{place} lines" if rows == total else f"{place} shown, {total:,} in all",
        ]
        parts += [part for part in self._filter_texts() if part]
        if self._needle:
            parts.append(f"search: {self._needle}")
        parts.append("following" if self._is_following else "" if self._is_read else "reading ...")
        parts.append(self._title)  # the longest, and the one that may be cut off
        return "  ·  ".join(part for part in parts if part)

    def _filter_texts(self) -> tuple[str, ...]:
        wanted = self._filter
        return (
            _LEVEL_NAMES[wanted.level] if wanted.level else "",
            wanted.process or "",
            f"phase {wanted.phase}" if wanted.phase else "",
        )

    def _detail(self, line: int | None) -> str:
        """The whole line, and what it means."""
        if line is None:
            return "no line" if self._is_read else "reading ..."
        text = self._index.text(line)
        problem = self._report.problem if self._report else None
        if self._report and problem is not None and problem.key_line_number - 1 == line:
            return "\n".join((text, *explain(self._report).cause))
        known = explain_line(text).meanings
        return f"{known[0].meaning}\n{text}" if known else text


class WholeLog(LogScreen):
    """The same above a dashboard; closes its index when its reader has ended."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "close", "Back", id="log.close", tooltip="back to the dashboard"),
        Binding("question_mark,f1,h", "log_help", "Help", id="log.help", tooltip="this help"),
    ]

    def action_close(self) -> None:
        """Back to what is below."""
        self.dismiss()

    def action_log_help(self) -> None:
        bindings = (*WholeLog.BINDINGS, *LogScreen.BINDINGS)
        keys = (binding for binding in bindings if isinstance(binding, Binding))
        self.app.push_screen(HelpScreen(keys, LOG_READING))

    def _read(self) -> None:
        super()._read()
        self._index.close()
