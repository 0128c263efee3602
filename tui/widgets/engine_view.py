"""The second page of the dashboard: scheduler, block map and requests of our own engine.

Asks the engine only while it is on screen.
"""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import DataTable
from textual.worker import Worker

from app.client.errors import ClientError
from tui.debug_poller import DebugPoller, DebugSampleSource
from tui.engine_state import EngineState, after_failure
from tui.messages import CancelAsked, DebugArrived, DebugFailed
from tui.screens.confirm import ConfirmScreen
from tui.widgets.block_map import BlockMapPanel
from tui.widgets.request_table import RequestTable
from tui.widgets.step_panel import StepPanel

ENGINE_READING = (
    ("n/a", "the server does not tell; the reason stands beside it"),
    ("stalled", "requests are there, and the engine ends and begins no step"),
    ("limit", "what kept the last step from doing more, and the flag that moves it"),
    ("cached", "blocks without a user whose prefix can still be found"),
    ("shared", "blocks that several requests use, counted in used too"),
    ("cursor", "cells with blocks of the request at the cursor"),
    ("waiting 3", "third in the queue"),
)

_ROWS_FOR_MAP = 18


class EngineView(Vertical):
    """`open` and `close` start and end the questions; `is_frozen` keeps the picture."""

    def __init__(self, source: DebugSampleSource | None, *, is_read_only: bool, id: str) -> None:
        super().__init__(id=id)
        self.state = EngineState()
        self.engine: str | None = None
        self.is_frozen = False
        self._source = source
        self._is_read_only = is_read_only
        self._worker: Worker[None] | None = None

    def compose(self) -> ComposeResult:
        """Top to bottom."""
        yield StepPanel(id="step")
        yield BlockMapPanel(id="block-map")
        yield RequestTable(id="request-table")

    def on_resize(self) -> None:
        """Where there is no room for all three, the requests are worth more than the map."""
        self.query_one(BlockMapPanel).display = self.size.height >= _ROWS_FOR_MAP

    def open(self) -> None:
        """Come on screen."""
        self.display = True
        self.query_one(RequestTable).focus()
        if self._source is not None and self._worker is None:
            poller = DebugPoller(self._source, self.post_message)
            self._worker = self.run_worker(poller.run(), name="debug-poller")

    def close(self) -> None:
        """Leave the screen; what was seen is forgotten, for it would be old."""
        self.display = False
        if self._worker is not None:
            self._worker.cancel()
            self._worker = None
        self.state = EngineState()
        self._draw()

    def on_debug_arrived(self, message: DebugArrived) -> None:
        """Draw what the engine told."""
        self._change(EngineState(message.sample))

    def on_debug_failed(self, message: DebugFailed) -> None:
        """Say why nothing new is known."""
        self._change(after_failure(self.state, message.error, self.engine))

    def on_data_table_row_highlighted(self, message: DataTable.RowHighlighted) -> None:
        """Mark the blocks of the request under the cursor."""
        self.query_one(BlockMapPanel).select(self.query_one(RequestTable).selected)

    def on_cancel_asked(self, message: CancelAsked) -> None:
        """Ask back, then end the request."""
        message.stop()
        if self._is_read_only:
            self.notify("--read-only: no request is cancelled from here.")
            return
        request_id = message.request_id

        def answered(is_yes: bool | None) -> None:
            if is_yes:
                self.run_worker(self._cancel(request_id), name="cancel")

        question = f"Cancel request {request_id}? Its client gets an error."
        self.app.push_screen(ConfirmScreen(question), answered)

    async def _cancel(self, request_id: str) -> None:
        assert self._source is not None, "its requests came from there"
        try:
            await self._source.cancel(request_id)
        except ClientError as error:
            self.notify(str(error), severity="error", markup=False)
        else:
            self.notify(f"Cancelled {request_id}.", markup=False)

    def _change(self, state: EngineState) -> None:
        if not self.is_frozen and self.display:
            self.state = state
            self._draw()

    def _draw(self) -> None:
        self.query_one(StepPanel).show_state(self.state)
        self.query_one(BlockMapPanel).show_state(self.state)
        self.query_one(RequestTable).show_sample(self.state.sample)
