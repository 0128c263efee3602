"""The dashboard: lays the widgets out and turns the poller's messages into what they show."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer

from tui import formatting
from tui.debug_poller import DebugSampleSource
from tui.history import MetricHistory, Snapshot
from tui.messages import Disconnected, SampleArrived
from tui.poller import MetricsPoller, SampleSource
from tui.widgets.cache_panel import CachePanel
from tui.widgets.engine_view import EngineView
from tui.widgets.kv_cache_bar import KVCacheBar
from tui.widgets.latency_table import LatencyTable
from tui.widgets.log_pane import LogPane
from tui.widgets.metric_tile import MetricTile
from tui.widgets.panel import Panel
from tui.widgets.queue_gauge import QueueGauge
from tui.widgets.server_header import Connection, HeaderState, ServerHeader

INTERVALS_S = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
_HEADER_TICK_S = 0.25
_ROWS_FOR_LOG = 30
QUIET_S = 5.0
"""Requests without any progress for so long are worth a word; only the engine view sees steps."""


class DashboardScreen(Screen[None]):
    """Pausing freezes the picture only: samples are collected all the time."""

    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "p,space",
            "toggle_pause",
            "Pause",
            id="dashboard.pause",
            tooltip="freeze the picture; samples are still collected",
        ),
        Binding(
            "plus,equals_sign",
            "change_rate(-1)",
            "Rate",
            id="dashboard.faster",
            key_display="+/-",
            tooltip="sample more often",
        ),
        Binding(
            "minus",
            "change_rate(1)",
            "Slower",
            id="dashboard.slower",
            show=False,
            tooltip="sample less often",
        ),
        Binding("r,f5", "poll_now", "Refresh", id="dashboard.refresh", tooltip="sample now"),
        Binding(
            "1,escape",
            "show_page(1)",
            "Back",
            id="dashboard.overview",
            key_display="1",
            tooltip="cache, traffic and latency",
        ),
        Binding(
            "2",
            "show_page(2)",
            "Engine",
            id="dashboard.engine",
            tooltip="scheduler, KV blocks and live requests",
        ),
        Binding(
            "l", "toggle_log", "Log", id="dashboard.log", tooltip="show or hide the server's log"
        ),
    ]

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
    ) -> None:
        super().__init__()
        self.history = MetricHistory()
        self.poller = MetricsPoller(source, self.post_message, interval_s)
        self._url = url
        self._log_path = log_path
        self._engine_view = EngineView(debug_source, is_read_only=is_read_only, id="engine")
        self._clock = clock
        self._shown: Snapshot | None = None
        self._is_paused = False
        self._failure: Disconnected | None = None

    def compose(self) -> ComposeResult:
        """Top to bottom: server, cache, traffic, latency, log, keys."""
        yield ServerHeader(self._header_state())
        with VerticalScroll(id="body", can_focus=False):
            yield KVCacheBar(id="kv-cache")
            with Horizontal(id="traffic"):
                yield QueueGauge(id="requests")
                yield MetricTile(
                    "Prompt tokens/s",
                    lambda snapshot: snapshot.prompt_tokens_per_s,
                    lambda snapshot: snapshot.prompt_rates,
                    id="prompt-rate",
                )
                yield MetricTile(
                    "Generation tokens/s",
                    lambda snapshot: snapshot.generation_tokens_per_s,
                    lambda snapshot: snapshot.generation_rates,
                    id="generation-rate",
                )
            with Horizontal(id="details"):
                yield LatencyTable(id="latency")
                yield CachePanel(id="scheduler")
        yield self._engine_view
        if self._log_path is not None:
            yield LogPane(self._log_path)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Start polling, and keep the age in the header moving."""
        self.run_worker(self.poller.run(), name="poller")
        self.set_interval(_HEADER_TICK_S, self._show_header)
        self._engine_view.display = False
        for pane in self.query(LogPane):
            pane.display = self.app.size.height >= _ROWS_FOR_LOG

    def on_sample_arrived(self, message: SampleArrived) -> None:
        """Remember the sample; draw it unless paused."""
        self.history.append(message.sample)
        self._failure = None
        if not self._is_paused:
            self._show_newest()
        self._show_connection()

    def on_disconnected(self, message: Disconnected) -> None:
        """Keep the last values on screen, visibly old."""
        self.history.append_gap()
        self._failure = message
        if not self._is_paused:
            self._show_newest()
        self._show_connection()

    def action_toggle_pause(self) -> None:
        """Freeze the picture, or catch up."""
        self._is_paused = not self._is_paused
        self._engine_view.is_frozen = self._is_paused
        if not self._is_paused:
            self._show_newest()
        self._show_connection()

    def action_change_rate(self, step: int) -> None:
        """Go to the neighbouring interval; an unusual one from the command line counts too."""
        current = self.poller.interval_s
        choices = sorted({*INTERVALS_S, current})
        index = min(len(choices) - 1, max(0, choices.index(current) + step))
        self.poller.interval_s = choices[index]
        self.poller.poll_now()
        self._show_header()

    def action_poll_now(self) -> None:
        """Sample at once."""
        self.poller.poll_now()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The footer offers the page that is not on screen."""
        if action == "show_page":
            return parameters[0] != (2 if self._engine_view.display else 1)
        return super().check_action(action, parameters)

    def action_show_page(self, page: int) -> None:
        """Overview or engine."""
        self.query_one("#body").display = page == 1
        if page == 2:
            self._engine_view.open()
        else:
            self.set_focus(None)
            self._engine_view.close()
        self.refresh_bindings()
        self._show_header()

    def action_toggle_log(self) -> None:
        """Show or hide the log, or say why there is none."""
        panes = self.query(LogPane)
        if not panes:
            self.notify("No log here: only `stoker serve` knows where its server's log is.")
        for pane in panes:
            pane.display = not pane.display

    def _show_newest(self) -> None:
        self._shown = self.history.snapshot()
        self._engine_view.engine = self._shown.sample.engine if self._shown else None
        for panel in self.query(Panel):
            panel.show(self._shown)

    def _show_connection(self) -> None:
        self.query_one("#body").set_class(self._failure is not None, "-stale")
        self._show_header()

    def _show_header(self) -> None:
        self.query_one(ServerHeader).show(self._header_state())

    def _header_state(self) -> HeaderState:
        sample = self._shown.sample if self._shown else None
        return HeaderState(
            url=self._url,
            interval_s=self.poller.interval_s,
            connection=self._connection(),
            model=sample.model if sample else None,
            engine=sample.engine if sample else None,
            age_s=self._clock() - sample.time_s if sample else None,
            reason=self._failure.reason if self._failure else "",
            num_restarts=self._shown.num_restarts if self._shown else 0,
            activity=self._activity(),
        )

    def _activity(self) -> str:
        """Busy, idle or stalled; "" where the server does not tell."""
        if self._engine_view.display and self._engine_view.state.activity is not None:
            return self._engine_view.state.activity.value[2:]
        if self._shown is None or self._shown.sample.running is None:
            return ""
        if not (self._shown.sample.running or self._shown.sample.waiting):
            return "idle"
        quiet_s = self._shown.quiet_s
        return f"busy, no token for {formatting.age(quiet_s)}" if quiet_s >= QUIET_S else "busy"

    def _connection(self) -> Connection:
        if self._failure is not None:
            return Connection.DISCONNECTED
        if self._is_paused:
            return Connection.PAUSED
        return Connection.LIVE if self._shown else Connection.CONNECTING
