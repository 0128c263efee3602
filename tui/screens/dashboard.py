"""The dashboard: lays the widgets out and turns the poller's messages into what they show.

The reader of logs is imported when there is a log: it costs as much as half of all the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.events import Resize
from textual.screen import Screen

from app.client import formatting
from app.client.errors import ClientError
from app.client.watch.host import CoreLoad, HostSample, HostSampler, is_local
from app.client.watch.watched import PacedSource
from tui.keys import usable_bindings
from tui.messages import Disconnected, LogLinesArrived, SampleArrived
from tui.screens.dashboard_keys import DASHBOARD_KEYS
from tui.screens.engine_view import ENGINE_READING, EngineView
from tui.screens.help import READING, HelpScreen
from tui.state.debug_poller import DebugSampleSource
from tui.state.history import WINDOWS_S, MetricHistory, Snapshot
from tui.state.levels import alert_of
from tui.state.poller import MetricsPoller, SampleSource
from tui.state.server_view import ServerView
from tui.widgets.charts.cache_panel import CachePanel
from tui.widgets.charts.kv_cache_bar import KVCacheBar
from tui.widgets.charts.latency_table import LatencyTable
from tui.widgets.charts.limit_panel import LimitPanel
from tui.widgets.charts.metric_tile import traffic_tiles
from tui.widgets.charts.queue_gauge import QueueGauge
from tui.widgets.engine.request_table import RequestTable
from tui.widgets.fleet.host_panel import HostPanel
from tui.widgets.key_bar import KeyBar
from tui.widgets.logs.log_pane import LogPane
from tui.widgets.panel import Panel
from tui.widgets.server_header import HeaderState, ServerHeader
from tui.widgets.start_panel import StartPanel

if TYPE_CHECKING:
    from tui.state.start_progress import StartProgress

INTERVALS_S = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
_HEADER_TICK_S = 1.0
_CORES_S = 2.0
_ROWS_FOR_LOG = 30
_ROWS_FOR_HOST = 30
_ROWS_FOR_ALL = 21
_COLUMNS_FOR_ALL = 72
_NO_LOG = "No log here: only `stoker serve` knows where its server's log is."

_PAGES = {1: "#body", 2: "#engine", 3: "#machine"}


class Overview(VerticalScroll):
    """The overview; a tall one has room for the machine and for more history."""

    def on_resize(self, event: Resize) -> None:
        """Its own height counts: the log may take a part of the screen."""
        self.set_class(event.size.height >= _ROWS_FOR_HOST, "-tall")
        self.set_class(event.size.height < _ROWS_FOR_ALL, "-short")
        self.set_class(event.size.width < _COLUMNS_FOR_ALL, "-narrow")


class DashboardScreen(Screen[None]):
    """Pausing freezes the picture only: samples are collected all the time."""

    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [*DASHBOARD_KEYS]

    def __init__(
        self,
        url: str,
        source: SampleSource,
        *,
        interval_s: float = 1.0,
        log_path: Path | None = None,
        debug_source: DebugSampleSource | None = None,
        is_read_only: bool = False,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        read_host: Callable[[], HostSample] | None = None,
        find_version: Callable[[], str | None] | None = None,
    ) -> None:
        super().__init__()
        self.history = MetricHistory()
        self.poller = MetricsPoller(source, self.post_message, interval_s)
        self._url = url
        self._log_path = log_path
        self._engine_view = EngineView(debug_source, is_read_only=is_read_only, id="engine")
        self._clock = clock
        self._wall_clock = wall_clock
        # A recording tells neither of this machine nor of this moment.
        self._is_replay = isinstance(source, PacedSource)
        self.position: Callable[[], str] = lambda: ""
        """Where in its recording the picture is; set by whoever plays one."""
        self.cause: Callable[[], str] = lambda: ""
        """Why the server is away, where its supervisor knows."""
        self._read_host = None if self._is_replay else read_host or HostSampler(url).read
        # Asked once, of a server that answers; a recording is not asked.
        self._find_version = None if self._is_replay else find_version
        self._version: str | None = None
        self._start: StartProgress | None = None
        self._window_s = WINDOWS_S[0]
        self._num_back = 0
        self._header_s = 0.0
        self._page = 1
        self._log_is_shown: dict[int, bool] = {}
        """Where the user has said so; else a page decides by its size."""
        self._read_cores = None if self._is_replay or not is_local(url) else CoreLoad().read
        self._shown: Snapshot | None = None
        self._is_paused = False
        self._failure: Disconnected | None = None

    def compose(self) -> ComposeResult:
        """Top to bottom: server, cache, traffic, latency, limit, machine, log, keys."""
        yield ServerHeader(self._header_state())
        yield StartPanel(id="start")
        with Overview(id="body", can_focus=False):
            yield KVCacheBar(id="kv-cache")
            with Horizontal(id="traffic"):
                yield QueueGauge(id="requests")
                yield from traffic_tiles()
            with Horizontal(id="details"):
                yield LatencyTable(id="latency")
                yield CachePanel(id="scheduler")
            yield LimitPanel(id="limit")
            if self._read_host is not None:  # nothing to show of a recording
                yield HostPanel(self._read_host, id="host")
        yield self._engine_view
        with Vertical(id="machine"):
            yield HostPanel(self._read_host, id="host-page")
        if self._log_path is not None:
            yield LogPane(self._log_path)
        yield KeyBar()

    def on_mount(self) -> None:
        """Start polling once a picture is there, and keep the age in the header moving."""
        self.call_after_refresh(self._start_polling)
        self.set_interval(_HEADER_TICK_S, self._tick)
        self._show_page()
        if self._read_cores is not None:
            self.run_worker(self._watch_cores(self._read_cores), name="cores")

    async def _watch_cores(self, read: Callable[[], float | None]) -> None:
        """How busy this machine is, when the server is on it: a limit that no metric tells."""
        panel = self.query_one(LimitPanel)  # found once: while the screen closes it is not there
        while True:
            panel.core_load = await asyncio.to_thread(read)
            await asyncio.sleep(_CORES_S)

    @property
    def num_requests(self) -> int | None:
        """In the server by the newest sample; None where it does not tell."""
        newest = self.history.snapshot(self._window_s)
        if newest is None or newest.sample.running is None:
            return None
        return int(newest.sample.running + (newest.sample.waiting or 0))

    def _start_polling(self) -> None:
        self.run_worker(self.poller.run(), name="poller")

    # ---- messages ------------------------------------------------------------------------------

    def on_sample_arrived(self, message: SampleArrived) -> None:
        """Remember the sample; draw it unless paused."""
        is_full = self.history.num_points == self.history.capacity
        self.history.append(message.sample)
        self._failure = None
        if self._find_version is not None:
            self.run_worker(self._ask_version(self._find_version), name="version")
            self._find_version = None
        if self._is_paused:
            # The moment that is looked at stays; in a full history it moves towards the old end.
            self._num_back = min(self._num_back + 1, self.history.num_points - 1)
            if is_full and self._num_back == self.history.num_points - 1:
                self._show_moment()
        else:
            self._show_moment()
        self._show_connection()

    def on_disconnected(self, message: Disconnected) -> None:
        """Keep the last values on screen, visibly old."""
        self.history.append_gap()
        self._failure = message
        self._show_connection()

    def on_log_lines_arrived(self, message: LogLinesArrived) -> None:
        """The log tells how a start goes."""
        from tui.state.start_progress import StartProgress

        self._start = self._start or StartProgress()
        self._start.feed(message.lines, self._clock())
        self._show_connection()

    # ---- keys ----------------------------------------------------------------------------------

    def action_toggle_pause(self) -> None:
        """Freeze the picture, or catch up."""
        self._is_paused = not self._is_paused
        self._num_back = 0
        for panel in self.query(HostPanel):
            panel.is_frozen = self._is_paused
        self._engine_view.is_frozen = self._is_paused
        if not self._is_paused:
            self._show_moment()
        self._show_connection()

    def action_step(self, step: int) -> None:
        """Look at an earlier or a later sample."""
        if self._shown is None:
            return
        if not self._is_paused:
            self.action_toggle_pause()
        self._num_back = min(self.history.num_points - 1, max(0, self._num_back + step))
        self._show_moment()
        if self._shown is not None:
            self._engine_view.show_past(self._shown.sample.time_s)
        self._show_connection()

    def action_change_rate(self, step: int) -> None:
        """Go to the neighbouring interval; an unusual one from the command line counts too."""
        current = self.poller.interval_s
        choices = sorted({*INTERVALS_S, current})
        index = min(len(choices) - 1, max(0, choices.index(current) + step))
        self.poller.interval_s = choices[index]
        self.poller.poll_now()
        self._show_header()

    def action_next_window(self) -> None:
        """Plots and percentiles over the next longer stretch of time."""
        place = (WINDOWS_S.index(self._window_s) + 1) % len(WINDOWS_S)
        self._window_s = WINDOWS_S[place]
        self._show_moment()
        self.notify(f"Window: {formatting.window(self._window_s)}", timeout=2)

    def action_poll_now(self) -> None:
        self.poller.poll_now()

    def action_save_picture(self) -> None:
        """The screen as SVG, beside whatever the user works on."""
        path = self.app.save_screenshot(path=str(Path.cwd()))
        self.notify(f"Saved {path}", markup=False)

    def action_panel_help(self) -> None:
        """Keys, and how to read the focused panel or the page."""
        focused = self.focused
        keys = [
            *(RequestTable.BINDINGS if isinstance(focused, RequestTable) else ()),
            *DashboardScreen.BINDINGS,
            *usable_bindings(self.app),
        ]
        page = f"show_page({self._page})"
        hidden = (page, "help")  # the app's own help stands behind this one
        usable = [b for b in keys if isinstance(b, Binding) and b.action not in hidden]
        if isinstance(focused, Panel) and focused.reading:
            title = str(focused.border_title)
            self.app.push_screen(HelpScreen(usable, focused.reading, title))
        else:
            self.app.push_screen(HelpScreen(usable, _page_reading(self._page)))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The footer offers the pages that are not on screen."""
        if action == "show_page":
            return parameters[0] != self._page
        if action == "back":
            return self._page != 1
        return super().check_action(action, parameters)

    def action_show_page(self, page: int) -> None:
        self._page = page
        self._show_page()
        self.refresh_bindings()
        self._show_header()

    def action_back(self) -> None:
        """Out of the filter first, then to the overview."""
        if not self._engine_view.forget_filter():
            self.action_show_page(1)

    def action_toggle_log(self) -> None:
        """Show or hide the log, or say why there is none."""
        panes = self.query(LogPane)
        if not panes:
            self.notify(_NO_LOG)
        for pane in panes:
            self._log_is_shown[self._page] = not pane.display
            pane.display = not pane.display

    def on_resize(self) -> None:
        """The log may have room now, or none any more."""
        self._show_log()

    def _show_log(self) -> None:
        """The engine's and the machine's page begin without the log; a low screen has no room."""
        has_room = self._page == 1 and self.app.size.height >= _ROWS_FOR_LOG
        for pane in self.query(LogPane):
            pane.display = self._log_is_shown.get(self._page, has_room or self._view.is_starting)

    def action_open_log(self) -> None:
        """The log view of `stoker logs --tui`."""
        if self._log_path is None:
            self.notify(_NO_LOG)
            return
        from tui.screens.logs import WholeLog
        from tui.state.log_index import LogIndex

        try:
            index = LogIndex(self._log_path)
        except OSError as error:
            self.notify(f"{self._log_path}: {error.strerror}", severity="error", markup=False)
            return
        self.app.push_screen(WholeLog(index, self._log_path.name, is_following=True))

    # ---- showing -------------------------------------------------------------------------------

    def _show_page(self) -> None:
        is_starting = self._view.is_starting
        for page, selector in _PAGES.items():
            if page != 2:
                self.query_one(selector).display = page == self._page and not is_starting
        self.query_one(StartPanel).display = is_starting
        self._show_log()
        if self._page == 2 and not is_starting:
            if not self._engine_view.is_open:
                self._engine_view.open()
        else:
            self._engine_view.close()
            if isinstance(self.focused, RequestTable):
                self.set_focus(None)
        self._show_panels()

    def _show_moment(self) -> None:
        self._shown = self.history.snapshot(self._window_s, self._num_back)
        self._engine_view.engine = self._shown.sample.engine if self._shown else None
        self._show_panels()

    def _show_panels(self) -> None:
        """Those of the page that is on screen; the others wait until it is theirs."""
        for panel in self.query_one(_PAGES[self._page]).query(Panel):
            panel.show(self._shown)

    async def _ask_version(self, find: Callable[[], str | None]) -> None:
        with contextlib.suppress(ClientError):
            self._version = await asyncio.to_thread(find)

    def _show_connection(self) -> None:
        self.query_one("#body").set_class(self._failure is not None, "-stale")
        if self.query_one(StartPanel).display != self._view.is_starting:
            self._show_page()
        self._show_header()

    def _tick(self) -> None:
        # A sample that arrived meanwhile has drawn the header.
        if self._clock() - self._header_s >= 0.9 * _HEADER_TICK_S:
            self._show_header()
        if self._view.is_starting:
            reason = self._failure.reason if self._failure else "the server says so"
            note = "" if self._log_path else "; only a log would tell the phases"
            panel = self.query_one(StartPanel)
            panel.show_start(self._start, self._clock(), f"{reason}{note}")

    def _show_header(self) -> None:
        self._header_s = self._clock()
        self._engine_view.show_cause(self._reason)
        self.query_one(ServerHeader).show(self._header_state())

    @property
    def _view(self) -> ServerView:
        return ServerView(self._shown, self._failure.error if self._failure else None, self._start)

    @property
    def _reason(self) -> str:
        """Why the server is away; "" while it answers."""
        return (self.cause() or self._failure.reason) if self._failure else ""

    def _header_state(self) -> HeaderState:
        sample = self._shown.sample if self._shown else None
        started_s = sample.start_time_s if sample else None
        engine = self._engine_view.state.activity if self._engine_view.display else None
        errors = [error for pane in self.query(LogPane) for error in pane.new_errors]
        alert, alert_level = alert_of(self._shown, errors)
        return HeaderState(
            url=self._url,
            interval_s=self.poller.interval_s,
            connection=self._view.connection(is_paused=self._is_paused, is_replay=self._is_replay),
            model=sample.model if sample else None,
            engine=sample.engine if sample else None,
            version=self._version or (self._start.engine_version if self._start else None),
            uptime_s=None if self._is_replay or not started_s else self._wall_clock() - started_s,
            age_s=self._clock() - sample.time_s if sample else None,
            reason=self._reason,
            num_restarts=self._shown.num_restarts if self._shown else 0,
            num_back=self._num_back if self._is_paused else 0,
            position=self.position() if self._is_replay else "",
            activity=self._view.activity(engine),
            alert=alert,
            alert_level=alert_level,
        )


def _page_reading(page: int) -> tuple[tuple[str, str], ...]:
    return {2: ENGINE_READING, 3: HostPanel.READING}.get(page, READING)
