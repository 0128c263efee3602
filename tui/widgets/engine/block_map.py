"""The KV cache as a map of its blocks; where the server tells none, as a share, and so said."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

from app.client import formatting
from app.client.debug.documents import BlockMap, BlockState
from app.client.metrics.slots import Slot
from tui.state.engine_state import EngineState
from tui.widgets.charts.history_graph import bar
from tui.widgets.panel import Panel
from tui.widgets.rows import Row, styled

_SELECTED = 4
_WIDEST_CELL = 8
_SIGNS = "·▒█▓◆"  # by BlockState, then the selected request's
_PARTS = ("note", "past", "graph", "value", "selected")


@dataclass(frozen=True, slots=True)
class DrawnMap:
    """Cells in the order of the blocks, each a BlockState or 4 for the selected request.

    `columns` is how wide one cell is drawn: few blocks are drawn large.
    """

    cells: Sequence[int]
    blocks_per_cell: int
    columns: int


def draw_map(blocks: BlockMap, width: int, rows: int, selected: Collection[int] = ()) -> DrawnMap:
    """Spread all blocks over the panel; a cell of several blocks shows their most common state."""
    per_cell = max(1, -(-blocks.num_blocks // max(1, width * rows)))
    columns = next(
        (size for size in range(_WIDEST_CELL, 1, -1) if width // size * rows >= blocks.num_blocks),
        1,
    )
    states = blocks.states
    cells = [
        _most_common(states[start : start + per_cell]) for start in range(0, len(states), per_cell)
    ]
    for block in selected:
        cells[(block - blocks.first_block) // per_cell] = _SELECTED
    return DrawnMap(cells, per_cell, columns)


def _most_common(states: bytes) -> int:
    """On a tie, the one that is harder to give away."""
    return max(BlockState, key=lambda state: (states.count(state), state))


class BlockMapPanel(Panel):
    """Draws to its own size; `select` marks the blocks of one request."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"panel--selected"}
    TITLE = "KV blocks"
    READING: ClassVar[tuple[tuple[str, str], ...]] = (
        ("a cell", "one block, or as many as the legend says; then the most common state"),
        ("cached", "blocks without a user whose prefix can still be found"),
        ("shared", "blocks that several requests use, counted in used too"),
        ("cursor", "cells with blocks of the request at the cursor"),
        ("unused slots", "token slots in running requests' blocks that hold nothing yet"),
        ("below", "how many blocks go out before a cached prefix is overwritten"),
    )

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.state = EngineState()
        self._selected: str | None = None
        self._slot_tokens: tuple[int, int] | None = None

    def show_state(self, state: EngineState) -> None:
        """Draw another state; the border tells about the free queue."""
        self.state = state
        self.caption(_queue_note(state.sample.blocks) if state.sample else "")
        self.border_title = _title(state.sample.blocks if state.sample else None)
        self.redraw()

    def show_slots(self, slots: Sequence[Slot]) -> None:
        """llama-server exports no cache, but its slots say how many tokens they hold."""
        held = sum(slot.tokens_held or 0 for slot in slots if slot.is_busy)
        total = sum(slot.num_context_tokens for slot in slots)
        self._slot_tokens = (held, total) if total else None
        self.redraw()

    def select(self, request_id: str | None) -> None:
        self._selected = request_id
        self.redraw()

    def rows(self, width: int, height: int) -> list[Row]:
        """The map over its legend, or the share of the cache that is in use."""
        sample = self.state.sample
        if sample is None:
            return self._share(width, f"share only: {self.state.reason or 'not asked yet'}")
        if not sample.blocks.states:
            return self._share(width, "share only: the pool is too large to be mapped every second")
        rows = max(1, height - 1)
        selected = sample.blocks.owners.get(self._selected or "", ())
        drawn = draw_map(sample.blocks, width, rows, selected)
        per_row = max(1, width // drawn.columns)
        lines = [
            self._row(drawn.cells[start : start + per_row], drawn.columns)
            for start in range(0, len(drawn.cells), per_row)
        ]
        return [*lines, *[()] * (rows - len(lines)), self._legend(sample.blocks, drawn)]

    def _row(self, cells: Sequence[int], columns: int) -> Row:
        return tuple(
            (_sign(cell, columns) * len(list(run)), _PARTS[cell]) for cell, run in groupby(cells)
        )

    def _legend(self, blocks: BlockMap, drawn: DrawnMap) -> Row:
        num_shared = blocks.states.count(BlockState.SHARED)
        entries = (
            (BlockState.USED, f"used {blocks.num_used:,}"),
            (BlockState.SHARED, f"shared {num_shared:,}"),
            (BlockState.CACHED, f"cached {blocks.num_cached or 0:,}"),
            (BlockState.FREE, f"free {blocks.num_free or 0:,}"),
            (_SELECTED, "cursor"),
        )
        row: Row = ()
        for cell, label in entries:
            row += (_SIGNS[cell], _PARTS[cell]), (f" {label}  ", "label")
        per_cell = drawn.blocks_per_cell
        note = "" if per_cell == 1 else f"{per_cell:,} per cell"
        return row + styled(note, "note")

    def _share(self, width: int, reason: str) -> list[Row]:
        sample = self.snapshot.sample if self.snapshot else None
        share = sample.kv_usage if sample else None
        if share is None and self._slot_tokens is not None:
            held, total = self._slot_tokens
            share = held / total
            reason = f"{held:,} of {total:,} tokens in busy slots; free ones keep old prompts"
        number = formatting.percent(share)
        return [
            ((bar(share, max(4, width - 15)), "graph"), (f"{number} used".rjust(15), "value")),
            styled(reason, "note"),
        ]


def _sign(cell: int, columns: int) -> str:
    """Wide cells end in a gap, so that blocks can be told apart."""
    return _SIGNS[cell] if columns == 1 else _SIGNS[cell] * (columns - 1) + " "


def _title(blocks: BlockMap | None) -> str:
    """With the slots that blocks are reserved for and that hold no token yet."""
    if blocks is None or blocks.num_unused_slots is None:
        return BlockMapPanel.TITLE
    unused = f"{blocks.num_unused_slots:,} reserved slots unused"
    return f"{BlockMapPanel.TITLE}, {unused}"


def _queue_note(blocks: BlockMap) -> str:
    """How far the free queue is from costing a prefix."""
    if not blocks.states:
        return ""
    before = blocks.num_before_eviction
    if before is None:
        return "no cached prefix would be lost"
    return f"{before:,} blocks until a cached prefix is lost"
