"""Several servers in one table; each is scraped by a poller of its own, none waits for another.

While a server's dashboard is open, its poller here rests, so nobody is ever asked twice at once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen
from textual.widgets import DataTable, Static
from textual.worker import Worker, WorkerCancelled, WorkerFailed

from app.client import formatting
from app.client.errors import ClientError
from app.client.watch.watched import WatchedServer
from tui.messages import Disconnected, SampleArrived, ServerChosen
from tui.state.fleet import FleetRow
from tui.state.history import MetricHistory, Snapshot
from tui.state.levels import findings_in
from tui.state.poller import MetricsPoller
from tui.widgets.fleet.fleet_table import FleetTable
from tui.widgets.key_bar import KeyBar

_REDRAW_S = 0.5
_KEPT_SAMPLES = 600


class _Watch:
    """One server's poller and what it brought."""

    def __init__(self, server: WatchedServer) -> None:
        self.server = server
        self.history = MetricHistory(_KEPT_SAMPLES)
        self.reason = ""
        self._snapshot: Snapshot | None = None
        self._is_fresh = False
        self.worker: Worker[None] | None = None
        self.poller: MetricsPoller | None = None

    def take(self, message: Message) -> bool:
        """Keep what the poller posted."""
        self._is_fresh = False
        if isinstance(message, SampleArrived):
            self.history.append(message.sample)
            self.reason = ""
        elif isinstance(message, Disconnected):
            self.history.append_gap()
            self.reason = message.reason
        return True

    async def run(self, interval_s: float) -> None:
        if self.server.past is not None and not self.history.num_points:
            await self._take_past()
        self._is_fresh = False  # others may have added to the history
        self.poller = MetricsPoller(self.server.open_source(), self.take, interval_s)
        await self.poller.run()

    async def _take_past(self) -> None:
        assert self.server.past is not None
        try:
            for sample in await self.server.past():
                self.history.append(sample)
        except ClientError as error:
            self.reason = str(error)

    @property
    def snapshot(self) -> Snapshot | None:
        """Made once per sample: the table is drawn more often than samples come."""
        if not self._is_fresh:
            self._snapshot, self._is_fresh = self.history.snapshot(), True
        return self._snapshot

    def row(self, now_s: float) -> FleetRow:
        """What the table shows of it."""
        newest_s = self.snapshot.sample.time_s if self.snapshot else None
        return FleetRow(
            self.server.name,
            self.snapshot,
            reason=self.reason and (self.server.cause() or self.reason),
            supervised=self.server.state(),
            age_s=None if newest_s is None else max(0.0, now_s - newest_s),
        )


class FleetScreen(Screen[None]):
    """The table, and under it why the selected server has no numbers."""

    AUTO_FOCUS = "#fleet-table"
    DEFAULT_CSS = """
    #fleet-table {
        height: 1fr;
        padding: 0;
        border-top: round $border;
        border-title-color: $foreground 85%;
        border-title-style: bold;
        background: $background;
        scrollbar-size-horizontal: 0;
    }
    #fleet-detail {
        height: 2;
        padding: 0 1;
        color: $foreground 70%;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r,f5", "poll_now", "Refresh", id="fleet.refresh", tooltip="sample all now"),
        Binding(
            "p,space",
            "toggle_pause",
            "Pause",
            id="fleet.pause",
            tooltip="freeze the table; samples are still collected",
        ),
    ]

    def __init__(
        self,
        servers: Sequence[WatchedServer],
        *,
        interval_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._watches = [_Watch(server) for server in servers]
        self._interval_s = interval_s
        self._clock = clock
        self._is_paused = False

    def compose(self) -> ComposeResult:
        """Table, one line of detail, keys."""
        yield FleetTable(id="fleet-table")
        yield Static(id="fleet-detail", markup=False)
        yield KeyBar()

    def on_mount(self) -> None:
        for watch in self._watches:
            self._start(watch)
        self.set_interval(_REDRAW_S, self._redraw)
        self._redraw()

    def on_screen_resume(self) -> None:
        """Back from a dashboard: its server is ours again."""
        for watch in self._watches:
            if watch.worker is not None and watch.worker.is_finished:
                watch.reason = ""
                self._start(watch)

    async def hand_over(self, number: int) -> MetricHistory:
        """Stop scraping one server until this screen is shown again.

        Whoever scrapes it meanwhile adds to the history that has been collected.
        """
        watch = self._watches[number]
        if watch.worker is not None:
            watch.worker.cancel()
            with contextlib.suppress(WorkerCancelled, WorkerFailed):
                await watch.worker.wait()
        return watch.history

    def _start(self, watch: _Watch) -> None:
        watch.worker = self.run_worker(partial(watch.run, self._interval_s), name="fleet-poller")

    def on_data_table_row_highlighted(self, _message: DataTable.RowHighlighted) -> None:
        self._show_detail()

    def on_data_table_row_selected(self, message: DataTable.RowSelected) -> None:
        message.stop()
        number = self.query_one(FleetTable).selected
        if number is not None:
            self.post_message(ServerChosen(number))

    def action_poll_now(self) -> None:
        for watch in self._watches:
            if watch.poller is not None:
                watch.poller.poll_now()

    def action_toggle_pause(self) -> None:
        """Freeze the table, or catch up."""
        self._is_paused = not self._is_paused
        self._draw("▮▮ paused" if self._is_paused else self._pace)

    @property
    def _pace(self) -> str:
        return f"every {formatting.interval(self._interval_s)}"

    def _redraw(self) -> None:
        if self.is_current and not self._is_paused:
            self._draw(self._pace)

    def _draw(self, note: str) -> None:
        now_s = self._clock()
        rows = [watch.row(now_s) for watch in self._watches]
        self.query_one(FleetTable).show_rows(rows, note)
        self._show_detail()

    def _show_detail(self) -> None:
        """What has no room in the row."""
        watch = self._watches[self.query_one(FleetTable).selected or 0]
        sample = watch.snapshot.sample if watch.snapshot else None
        about = (sample.engine, sample.model) if sample else ()
        cause = watch.server.cause() if watch.reason else ""
        found = () if watch.reason else findings_in(watch.snapshot)
        alerts = (finding.level.signed(finding.reason) for finding in found)
        parts = (watch.server.url, *about, cause or watch.reason, *alerts)
        self.query_one("#fleet-detail", Static).update("  ".join(part for part in parts if part))
