"""The second page of the dashboard: scheduler, ranks, block map and requests of our own engine.

Asks the engine only while it is on screen. llama-server's slots take the place of requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol, runtime_checkable

from textual.containers import Vertical
from textual.widgets import DataTable, Input
from textual.worker import Worker

from app.client.debug.documents import DebugSample, LiveRequest
from app.client.errors import ClientError
from app.client.metrics.slots import Slot
from tui.messages import (
    CancelAsked,
    DebugArrived,
    DebugFailed,
    DetailsAsked,
    FilterAsked,
    NextEngineAsked,
)
from tui.screens.confirm import ConfirmScreen
from tui.screens.request import RequestScreen, TraceSource
from tui.state.debug_poller import INTERVAL_S, DebugPoller, DebugSampleSource
from tui.state.engine_state import EngineState, after_failure
from tui.widgets.engine.block_map import BlockMapPanel
from tui.widgets.engine.rank_panel import RankPanel
from tui.widgets.engine.request_table import RequestTable
from tui.widgets.engine.step_panel import StepPanel

ENGINE_READING = (
    ("n/a", "the server does not tell; the reason stands beside it"),
    *StepPanel.READING,
    *RankPanel.READING,
    *BlockMapPanel.READING,
    *RequestTable.READING,
)

_ROWS_FOR_MAP = 18
_ROWS_BESIDE_RANKS = 13  # of the scheduler and of the lowest table of requests
_KEPT_SAMPLES = 120
_KEPT_BLOCKS = 200_000
"""A look back holds as many samples as these two allow: maps of large pools are large."""


@runtime_checkable
class SlotSource(Protocol):
    """A source that can also ask for slots."""

    async def slots(self) -> tuple[Slot, ...]:
        """What llama-server's slots work on, or ClientError."""


@runtime_checkable
class ReplicaSource(Protocol):
    """A source that asks one of several replicas."""

    engine: int


class EngineView(Vertical):
    """`open` and `close` start and end the questions; `is_frozen` keeps the picture."""

    def __init__(self, source: DebugSampleSource | None, *, is_read_only: bool, id: str) -> None:
        super().__init__(id=id)
        self.state = EngineState()
        self.engine: str | None = None
        self.is_frozen = False
        self._cause = ""
        self._past: deque[DebugSample] = deque(maxlen=_KEPT_SAMPLES)
        self._source = source
        self._is_read_only = is_read_only
        self._worker: Worker[None] | None = None
        self._slot_worker: Worker[None] | None = None

    def _fill(self) -> None:
        """Top to bottom, when first looked at; the filter is there only while it is typed."""
        filter_input = Input(placeholder="text, or !text for rows without it", id="request-filter")
        filter_input.display = False
        panels = StepPanel(id="step"), RankPanel(id="ranks"), BlockMapPanel(id="block-map")
        self.mount(*panels, RequestTable(id="request-table"), filter_input)

    def on_resize(self) -> None:
        """Where there is no room for all of them, the requests are worth more than the map."""
        self._make_room()

    def _make_room(self) -> None:
        room = self.size.height - _ROWS_BESIDE_RANKS
        rows_of_ranks = sum(panel.take_rows(room) for panel in self.query(RankPanel))
        for block_map in self.query(BlockMapPanel):
            block_map.display = self.size.height - rows_of_ranks >= _ROWS_FOR_MAP

    @property
    def is_open(self) -> bool:
        """Whether it is on screen and asks, if there is anybody to ask."""
        return self.display and (self._source is None or self._worker is not None)

    def open(self) -> None:
        self.display = True
        if not self.children:
            self._fill()
        self.query_one(RequestTable).focus()
        if self._source is not None and self._worker is None:
            poller = DebugPoller(self._source, self.post_message)
            self._worker = self.run_worker(poller.run(), name="debug-poller")

    def close(self) -> None:
        """Leave the screen; what was seen is forgotten, for it would be old."""
        self.display = False
        for worker in (self._worker, self._slot_worker):
            if worker is not None:
                worker.cancel()
        self._worker = self._slot_worker = None
        self.state = EngineState()
        self._past.clear()
        self._draw()

    def show_past(self, time_s: float) -> None:
        """The newest sample that is not younger than the rest of the picture."""
        found = [sample for sample in self._past if sample.time_s <= time_s + 1.0]
        reason = "" if found else "nothing was asked at that moment"
        self.state = EngineState(found[-1] if found else None, reason)
        self._draw()

    def show_cause(self, cause: str) -> None:
        """Why the server is away: it may name the rank that failed first. "" while it answers."""
        if cause != self._cause:
            self._cause = cause
            self._draw()

    # ---- messages ------------------------------------------------------------------------------

    def on_debug_arrived(self, message: DebugArrived) -> None:
        """Draw what the engine told."""
        self._past.append(message.sample)
        while len(self._past) > 1 and _num_blocks(self._past) > _KEPT_BLOCKS:
            self._past.popleft()
        self._change(EngineState(message.sample))

    def on_debug_failed(self, message: DebugFailed) -> None:
        """Say why nothing new is known."""
        self._change(after_failure(self.state, message.error, self.engine))
        source: object = self._source
        is_asked = self._slot_worker is not None or not self.display
        if self.engine == "llama.cpp" and isinstance(source, SlotSource) and not is_asked:
            self._slot_worker = self.run_worker(self._poll_slots(source), name="slots")

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

    def on_details_asked(self, message: DetailsAsked) -> None:
        message.stop()
        source = self._source if isinstance(self._source, TraceSource) else None
        self.app.push_screen(RequestScreen(message.request_id, source, self._request))

    def on_next_engine_asked(self, message: NextEngineAsked) -> None:
        """Look at the next replica; what was seen of the last one says nothing of it."""
        message.stop()
        source: object = self._source
        if self.state.sample is None or not isinstance(source, ReplicaSource):
            return
        num_engines = self.state.sample.scheduler.num_engines
        if num_engines == 1:
            self.notify("This server has one engine.")
            return
        source.engine = (source.engine + 1) % num_engines
        self._past.clear()
        self.state = EngineState()
        self._draw()

    def on_filter_asked(self, message: FilterAsked) -> None:
        message.stop()
        filter_input = self.query_one("#request-filter", Input)
        filter_input.display = True
        filter_input.focus()

    def on_input_changed(self, message: Input.Changed) -> None:
        """Filter while it is typed."""
        self.query_one(RequestTable).set_filter(message.value)

    def on_input_submitted(self, message: Input.Submitted) -> None:
        """The text stays; an empty one means all requests."""
        self.end_filter()

    def forget_filter(self) -> bool:
        """Show all requests again and put the input away; False if there was neither."""
        was_open = self.end_filter()
        for filter_input in self.query("#request-filter").results(Input):
            if was_open or filter_input.value:
                filter_input.value = ""
                self.query_one(RequestTable).set_filter("")
                return True
        return was_open

    def end_filter(self) -> bool:
        """Put the input away; False if it was not there."""
        for filter_input in self.query("#request-filter"):
            if filter_input.display:
                filter_input.display = False
                self.query_one(RequestTable).focus()
                return True
        return False

    # ---- inside --------------------------------------------------------------------------------

    def _request(self, request_id: str) -> LiveRequest | None:
        requests = self.state.sample.requests if self.state.sample else ()
        return next((request for request in requests if request.id == request_id), None)

    async def _cancel(self, request_id: str) -> None:
        assert self._source is not None, "its requests came from there"
        try:
            await self._source.cancel(request_id)
        except ClientError as error:
            self.notify(str(error), severity="error", markup=False)
        else:
            self.notify(f"Cancelled {request_id}.", markup=False)

    async def _poll_slots(self, source: SlotSource) -> None:
        while True:
            try:
                slots = await source.slots()
            except ClientError as error:
                self.query_one(RequestTable).show_slots((), str(error))
            else:
                if not self.is_frozen:
                    self.query_one(RequestTable).show_slots(slots)
                    self.query_one(BlockMapPanel).show_slots(slots)
            await asyncio.sleep(INTERVAL_S)

    def _change(self, state: EngineState) -> None:
        if not self.is_frozen and self.display:
            self.state = state
            self._draw()

    def _draw(self) -> None:
        if not self.children:
            return
        self.query_one(StepPanel).show_state(self.state)
        ranks = self.state.sample.scheduler.ranks if self.state.sample else ()
        self.query_one(RankPanel).show_ranks(ranks, self._cause)
        self._make_room()
        self.query_one(BlockMapPanel).show_state(self.state)
        if self.engine != "llama.cpp" or self.state.sample is not None:
            self.query_one(RequestTable).show_sample(self.state.sample)


def _num_blocks(samples: deque[DebugSample]) -> int:
    return sum(len(sample.blocks.states) for sample in samples)
