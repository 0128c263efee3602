"""The dashboard application: theme, quitting, help and palette; `run_dashboard` and `run_fleet` are
the ways in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen

from app.client.server import server_version
from app.client.watch.replay import Replay
from app.client.watch.watched import SampleSource, WatchedServer
from tui.keys import palette_commands
from tui.messages import ServerChosen
from tui.screens.confirm import LeaveScreen
from tui.screens.dashboard import DashboardScreen
from tui.screens.engine_view import ENGINE_READING
from tui.screens.fleet import FleetScreen
from tui.screens.help import HelpScreen
from tui.state.debug_poller import DebugSampleSource
from tui.state.history import MetricHistory
from tui.theme import StyledApp
from tui.widgets.engine.request_table import RequestTable
from tui.widgets.fleet.fleet_table import FleetTable

QUIT = "quit"
DETACH = "detach"
SERVER_GONE = "server-gone"
_ALIVE_CHECK_S = 0.25
_END_CHECK_S = 0.5


class DashboardError(Exception):
    """The dashboard itself failed; Textual has already printed why."""


class WatchApp(StyledApp):
    """What every application that watches servers has: look, keys, help. Ends with QUIT."""

    CSS_PATH = "app.tcss"
    TITLE = "stoker"
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,f10", "leave", "Quit", id="app.quit", tooltip="quit (Ctrl-C does it too)"),
        # Above everything else: Textual gives Ctrl-C to copying text.
        Binding("ctrl+c", "leave", id="app.interrupt", show=False, priority=True),
        Binding("question_mark,f1,h", "help", "Help", id="app.help", tooltip="this help"),
    ]

    replay: Replay | None = None
    """What is played back, if nothing live is watched; its end is said."""

    def on_mount(self) -> None:
        """Put the first screen up."""
        self.wear(self.appearance)
        self.push_screen(self.first_screen())
        if self.replay is not None:
            self._end_check = self.set_interval(_END_CHECK_S, self._check_end)

    def _check_end(self) -> None:
        if self.replay is not None and self.replay.is_over:
            self._end_check.stop()
            self.notify("The recording ends here.", timeout=3600.0)

    def first_screen(self) -> Screen[None]:
        """The screen below all others."""
        raise NotImplementedError

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Our actions first, then Textual's."""
        return palette_commands(self, screen, super().get_system_commands(screen))

    def action_leave(self) -> None:
        self.exit(QUIT)

    def action_help(self) -> None:
        bindings = (*DashboardScreen.BINDINGS, *WatchApp.BINDINGS)
        if isinstance(self.focused, RequestTable):
            keys = self._usable([*RequestTable.BINDINGS, *bindings])
            self.push_screen(HelpScreen(keys, ENGINE_READING))
        else:
            self.push_screen(HelpScreen(self._usable(bindings)))

    def _usable(self, bindings: Iterable[BindingType]) -> list[Binding]:
        """Without the key for the page that is on screen."""
        page = "show_page(2)" if isinstance(self.focused, RequestTable) else "show_page(1)"
        return [b for b in bindings if isinstance(b, Binding) and b.action != page]


class DashboardApp(WatchApp):
    """One server. Ends with QUIT or SERVER_GONE, that of an owner also with DETACH."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("D", "detach", "Detach", id="app.detach",
                tooltip="leave; the server runs on in the background, where q would stop it"),
    ]  # fmt: skip

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
        find_version: Callable[[], str | None] | None = None,
        history: MetricHistory | None = None,
        is_owner: bool = False,
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
            find_version=find_version,
        )
        if history is not None:
            self.dashboard.history = history
        self._server_alive = server_alive
        self._is_owner = is_owner

    def first_screen(self) -> Screen[None]:
        """The dashboard; its server's process is watched too, if there is one to watch."""
        if self._server_alive is not None:
            self.set_interval(_ALIVE_CHECK_S, self._check_server)
        return self.dashboard

    def action_leave(self) -> None:
        """Ask first where that may end requests; asked again, it is meant."""
        count = self.dashboard.num_requests if self._is_owner else 0
        if count == 0 or isinstance(self.screen, LeaveScreen):
            super().action_leave()
        else:
            self.push_screen(LeaveScreen(count), self._leave)

    def action_detach(self) -> None:
        self.exit(DETACH)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whose server it is not has nothing to detach from."""
        if action == "detach":
            return self._is_owner
        return super().check_action(action, parameters)

    def _leave(self, answer: str | None) -> None:
        if answer is not None:
            self.exit(answer)

    def _check_server(self) -> None:
        if self._server_alive is not None and not self._server_alive():
            self.exit(SERVER_GONE)


class FleetApp(WatchApp):
    """Several servers: the table, and the dashboard of the one that was chosen above it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        # Below the dashboard's own use of the key.
        Binding("escape", "close_server", "Servers", id="app.servers", tooltip="back to the table"),
    ]

    def __init__(
        self,
        servers: Sequence[WatchedServer],
        *,
        interval_s: float = 1.0,
        is_read_only: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.fleet = FleetScreen(servers, interval_s=interval_s, clock=clock)
        self._servers = servers
        self._interval_s = interval_s
        self._is_read_only = is_read_only
        self._clock = clock

    def first_screen(self) -> Screen[None]:
        return self.fleet

    async def on_server_chosen(self, message: ServerChosen) -> None:
        """Open a dashboard with what the table has collected so far."""
        server = self._servers[message.number]
        history = await self.fleet.hand_over(message.number)
        debug_source = server.open_debug()
        dashboard = DashboardScreen(
            server.url,
            server.open_source(),
            interval_s=self._interval_s,
            log_path=server.log_path,
            debug_source=debug_source,
            is_read_only=self._is_read_only,
            clock=self._clock,
            find_version=_version_question(server, debug_source),
        )
        dashboard.history = history
        dashboard.cause = server.cause
        if self.replay is not None:
            dashboard.position = self.replay.position_text
        await self.push_screen(dashboard)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Only a dashboard is closed."""
        if action == "close_server":
            return isinstance(self.screen, DashboardScreen)
        return super().check_action(action, parameters)

    def action_help(self) -> None:
        """The table has keys of its own."""
        if not isinstance(self.screen, FleetScreen):
            super().action_help()
            return
        bindings = (*FleetScreen.BINDINGS, *FleetTable.BINDINGS, *WatchApp.BINDINGS)
        self.push_screen(HelpScreen(b for b in bindings if isinstance(b, Binding)))

    def action_close_server(self) -> None:
        self.pop_screen()


def run_dashboard(
    server: WatchedServer,
    *,
    interval_s: float = 1.0,
    server_alive: Callable[[], bool] | None = None,
    is_read_only: bool = False,
    replay: Replay | None = None,
    history: MetricHistory | None = None,
    is_owner: bool = False,
) -> str:
    """Run until the user quits ("quit", "detach") or `server_alive()` is False ("server-gone").

    A signal raises EndedBySignal, unless the caller owns the server and with it the signals.
    """
    debug_source = server.open_debug()
    app = DashboardApp(
        server.url,
        server.open_source(),
        interval_s=interval_s,
        log_path=server.log_path,
        server_alive=server_alive,
        debug_source=debug_source,
        is_read_only=is_read_only,
        clock=replay.now_s if replay else time.monotonic,
        find_version=_version_question(server, debug_source),
        history=history,
        is_owner=is_owner,
    )
    app.owns_signals = not is_owner
    app.dashboard.cause = server.cause
    if replay is not None:
        app.dashboard.position = replay.position_text
    return _run(app, replay)


def _version_question(
    server: WatchedServer, debug_source: DebugSampleSource | None
) -> Callable[[], str | None] | None:
    """How to ask a server itself; None for one that is known through Prometheus only."""
    return None if debug_source is None else partial(server_version, server.url)


def run_fleet(
    servers: Sequence[WatchedServer],
    *,
    interval_s: float = 1.0,
    is_read_only: bool = False,
    replay: Replay | None = None,
) -> str:
    """Run until the user quits ("quit")."""
    clock = replay.now_s if replay else time.monotonic
    app = FleetApp(servers, interval_s=interval_s, is_read_only=is_read_only, clock=clock)
    return _run(app, replay)


def _run(app: WatchApp, replay: Replay | None) -> str:
    app.replay = replay
    result = app.run_to_end()
    if app.return_code:
        raise DashboardError("the dashboard failed; the cause is printed above")
    return result or QUIT
