"""The log viewer as an application of its own. `run_log_view` is the way in."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen

from tui.keys import palette_commands
from tui.screens.help import HelpScreen
from tui.screens.logs import LOG_READING, LogScreen
from tui.state.log_index import LogIndex
from tui.theme import StyledApp


class LogApp(StyledApp):
    """Ends when its user says so."""

    CSS_PATH = "app.tcss"
    TITLE = "stoker logs"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,f10", "quit", "Quit", id="app.quit", tooltip="quit (Ctrl-C does it too)"),
        Binding("ctrl+c", "quit", id="app.interrupt", show=False, priority=True),
        Binding("question_mark,f1,h", "help", "Help", id="app.help", tooltip="this help"),
    ]

    def __init__(self, path: Path, title: str) -> None:
        super().__init__()
        self.index = LogIndex(path)
        self._log_title = title

    def on_mount(self) -> None:
        self.wear(self.appearance)
        self.push_screen(LogScreen(self.index, self._log_title))

    def on_unmount(self) -> None:
        self.index.close()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Our actions first, then Textual's."""
        return palette_commands(self, screen, super().get_system_commands(screen))

    def action_help(self) -> None:
        bindings = (*LogScreen.BINDINGS, *LogApp.BINDINGS)
        keys = (binding for binding in bindings if isinstance(binding, Binding))
        self.push_screen(HelpScreen(keys, LOG_READING))


def run_log_view(path: Path, title: str) -> bool:
    """Run until the user quits; False when the view failed (Textual has printed why)."""
    app = LogApp(path, title)
    app.run_to_end()
    return not app.return_code
