"""How full the KV cache is: share in use, share with reusable prefixes, and the past hour of it."""

from __future__ import annotations

from typing import ClassVar

from app.client import formatting
from app.client.metrics.absence import why_absent
from app.client.metrics.sample import MetricsSample
from app.client.thresholds import Level, level_of
from tui.state.history import Snapshot
from tui.widgets.charts.history_graph import bar, columns, graph_rows
from tui.widgets.panel import PARTS, Panel
from tui.widgets.rows import Row, styled

_LABEL_WIDTH = 10
_PERCENT_WIDTH = 9
_BLOCKS_WIDTH = 23
_ROOM_FOR_BLOCKS = 48


class KVCacheBar(Panel):
    """Two bars over the same scale with their numbers, a line of facts, and a graph below."""

    TITLE = "KV cache"
    READING: ClassVar[tuple[tuple[str, str], ...]] = (
        ("used", "blocks that requests hold; a block of vLLM's pool is kept empty by design"),
        ("reusable", "blocks whose prefix a new request can reuse, free ones and used ones"),
        ("free", "blocks that can be handed out, those with an old prefix included"),
        ("tokens", "the used share of the token capacity that the server reports"),
        ("peak", "the fullest moment of the window; the graph's scale ends at 100 %"),
    )

    def show(self, snapshot: Snapshot | None) -> None:
        """Draw another snapshot; the size of the cache goes into the border."""
        self.caption(_size(snapshot) if snapshot else "")
        super().show(snapshot)

    def rows(self, width: int, height: int) -> list[Row]:
        """`used`, `cached`, facts, and the history where there is room."""
        snapshot = self.snapshot
        sample = snapshot.sample if snapshot else None
        rows = [
            self._line("used", "kv_usage", _held(sample), "graph", width),
            *self._fullest(width),
            self._line("reusable", "kv_cached_share", "hold a prefix", "past", width),
            styled(_facts(snapshot), "note"),
        ]
        if snapshot is not None and height > len(rows) and sample and sample.kv_usage is not None:
            drawn = columns(snapshot.series("kv_usage"), snapshot.window_s, width)
            graph = graph_rows(drawn, height - len(rows), top=1.0)
            rows += [styled(row, "graph") for row in graph]
        return rows

    def _fullest(self, width: int) -> list[Row]:
        """The engine that is fullest, by name: the mean hides it."""
        fullest = self.snapshot.sample.fullest if self.snapshot else None
        if fullest is None or fullest.kv_usage is None:
            return []
        level = level_of("kv_usage", fullest.kv_usage)
        told = level.signed(formatting.percent(fullest.kv_usage))
        others = (
            ", ".join(
                f"{engine.name} {formatting.percent(engine.kv_usage)}"
                for engine in self.snapshot.sample.engines
                if engine is not fullest
            )
            if self.snapshot
            else ""
        )
        head = f"{'fullest':<{_LABEL_WIDTH}}"
        load = f"{formatting.count(fullest.running)} run, {formatting.count(fullest.waiting)} wait"
        return [
            (
                (head, "label"),
                (f"{fullest.name} {told}", PARTS[level]),
                (f" · {load} · {others}", "note"),
            )
        ]

    def _line(self, label: str, name: str, note: str, part: str, width: int) -> Row:
        share: float | None = getattr(self.snapshot.sample, name) if self.snapshot else None
        head = styled(label.ljust(_LABEL_WIDTH), "label")
        if share is None and self.snapshot is not None:
            reason = why_absent(name, self.snapshot.sample.engine)
            return head + styled(f"n/a: {reason}", "note")
        note_width = _BLOCKS_WIDTH if width >= _ROOM_FOR_BLOCKS else 0
        level = level_of("kv_usage", share) if name == "kv_usage" else Level.OK
        told = level.signed(formatting.percent(share)).rjust(_PERCENT_WIDTH + 2)
        bar_width = max(4, width - _LABEL_WIDTH - len(told) - note_width)
        return (
            *head,
            (bar(share, bar_width), PARTS[level] if level else part),
            (told, PARTS[level]),
            (note.rjust(note_width) if note_width else "", "note"),
        )


def _held(sample: MetricsSample | None) -> str:
    """Blocks, or tokens of an engine that tells no blocks."""
    if sample is None:
        return f"{formatting.UNKNOWN} / {formatting.UNKNOWN} blocks"
    used, total, unit = sample.kv_blocks_used, sample.kv_blocks_usable, "blocks"
    if total is None:
        used, total, unit = sample.kv_used_tokens, sample.kv_capacity_tokens, "tokens"
    if used is None and total is None:
        return ""
    return f"{formatting.count(used)} / {formatting.count(total)} {unit}"


def _facts(snapshot: Snapshot | None) -> str:
    if snapshot is None:
        return ""
    sample, parts = snapshot.sample, []
    if sample.kv_blocks_usable is not None and sample.kv_blocks_used is not None:
        parts.append(f"free {sample.kv_blocks_usable - sample.kv_blocks_used:,} blocks")
    if sample.kv_held_tokens is not None and sample.kv_capacity_tokens:
        parts.append(f"{sample.kv_held_tokens:,} of {sample.kv_capacity_tokens:,} tokens")
    highest = snapshot.peak("kv_usage")
    if highest is not None:
        stretch = formatting.window(snapshot.window_s)
        parts.append(f"peak {formatting.percent(highest)} in {stretch}")
    return " · ".join(parts)


def _size(snapshot: Snapshot) -> str:
    sample = snapshot.sample
    parts = []
    if sample.block_size is not None:
        parts.append(f"{sample.block_size} tokens per block")
    if sample.max_concurrency is not None:
        parts.append(f"room for {sample.max_concurrency:.2f} requests of full length")
    return " · ".join(parts)
