"""The dashboard application: theme, quitting, help and palette. `run_dashboard` is the way in."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen

from app.client.debug import DebugSource
from app.client.server import MetricsSource
from app.client.transport import normalise_base_url
from tui.debug_poller import DebugSampleSource
from tui.palette import palette_commands
from tui.poller import SampleSource
from tui.screens.dashboard import DashboardScreen
from tui.screens.help import HelpScreen
from tui.theme import STOKER_THEME
from tui.widgets.engine_view import ENGINE_READING
from tui.widgets.request_table import RequestTable

QUIT = "quit"
SERVER_GONE = "server-gone"
_ALIVE_CHECK_S = 0.25
_SHORTEST_TIMEOUT_S = 2.0


class DashboardError(Exception):
    """The dashboard itself failed; Textual has already printed why."""


class DashboardApp(App[str]):
    """Ends with QUIT or SERVER_GONE."""

    CSS_PATH = "app.tcss"
    TITLE = "stoker"
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,f10", "leave", "Quit", id="app.quit", tooltip="quit (Ctrl-C does it too)"),
        # Above everything else: Textual gives Ctrl-C to copying text.
        Binding("ctrl+c", "leave", id="app.interrupt", show=False, priority=True),
        Binding("question_mark,f1,h", "help", "Help", id="app.help", tooltip="this help"),
    ]

    def __init__(
        self,
        url: str,
        source: SampleSource,
        *,
        interval_s: float = 1.0,
        log_path: Path | None = None,
        server_alive: Callable[[], bool] | None = None,
        debug_source: DebugSampleSource | None = None,
        is_read_only: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.dashboard = DashboardScreen(
            url,
            source,
            interval_s=interval_s,
            log_path=log_path,
            debug_source=debug_source,
            is_read_only=is_read_only,
            clock=clock,
        )
        self._server_alive = server_alive

    def on_mount(self) -> None:
        """Put the dashboard up and watch the server's process, if there is one to watch."""
        self.register_theme(STOKER_THEME)
        self.theme = STOKER_THEME.name
        self.push_screen(self.dashboard)
        if self._server_alive is not None:
            self.set_interval(_ALIVE_CHECK_S, self._check_server)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Our actions first, then Textual's."""
        return palette_commands(self, screen, super().get_system_commands(screen))

    def action_leave(self) -> None:
        """End the dashboard."""
        self.exit(QUIT)

    def action_help(self) -> None:
        """Explain keys and numbers."""
        bindings = (*DashboardScreen.BINDINGS, *DashboardApp.BINDINGS)
        if isinstance(self.focused, RequestTable):
            keys = self._usable([*RequestTable.BINDINGS, *bindings])
            self.push_screen(HelpScreen(keys, ENGINE_READING))
        else:
            self.push_screen(HelpScreen(self._usable(bindings)))

    def _usable(self, bindings: Iterable[BindingType]) -> list[Binding]:
        """Without the key for the page that is on screen."""
        page = "show_page(2)" if isinstance(self.focused, RequestTable) else "show_page(1)"
        return [b for b in bindings if isinstance(b, Binding) and b.action != page]

    def _check_server(self) -> None:
        if self._server_alive is not None and not self._server_alive():
            self.exit(SERVER_GONE)


def run_dashboard(
    url: str,
    *,
    api_key: str | None = None,
    interval_s: float = 1.0,
    log_path: Path | None = None,
    server_alive: Callable[[], bool] | None = None,
    is_read_only: bool = False,
) -> str:
    """Run until the user quits ("quit") or `server_alive()` turns False ("server-gone")."""
    base_url = normalise_base_url(url)
    source = MetricsSource(
        base_url, api_key=api_key, timeout_s=max(_SHORTEST_TIMEOUT_S, 0.9 * interval_s)
    )
    app = DashboardApp(
        base_url,
        source,
        interval_s=interval_s,
        log_path=log_path,
        server_alive=server_alive,
        debug_source=DebugSource(base_url, api_key=api_key),
        is_read_only=is_read_only,
    )
    result = app.run()
    if app.return_code:
        raise DashboardError("the dashboard failed; the cause is printed above")
    return result or QUIT
