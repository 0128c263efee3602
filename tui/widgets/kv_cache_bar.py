"""How full the KV cache is: share in use, share with reusable prefixes, and the past hour of it."""

from __future__ import annotations

from typing import ClassVar

from app.client import formatting
from app.client.absence import why_absent
from app.client.metrics import MetricsSample
from tui.history import Snapshot
from tui.widgets.history_graph import bar, columns, graph_rows
from tui.widgets.panel import Panel
from tui.widgets.rows import Row, styled

_LABEL_WIDTH = 8
_PERCENT_WIDTH = 9
_BLOCKS_WIDTH = 25


class KVCacheBar(Panel):
    """Two bars over the same scale with their numbers, a line of facts, and a graph below."""

    TITLE = "KV cache"
    READING: ClassVar[tuple[tuple[str, str], ...]] = (
        ("used", "blocks that requests hold; a block of vLLM's pool is kept empty by design"),
        ("cached", "blocks whose prefix a new request can reuse, free ones and used ones"),
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
        total = sample.kv_blocks_total if sample else None
        used = sample.kv_blocks_used if sample else None
        blocks = f"{formatting.count(used)} / {formatting.count(total)} blocks"
        rows = [
            self._line("used", "kv_usage", blocks, "graph", width),
            self._line("cached", "kv_cached_share", "reusable prefixes", "past", width),
            styled(_facts(snapshot), "note"),
        ]
        if snapshot is not None and height > len(rows) and sample and sample.kv_usage is not None:
            drawn = columns(snapshot.series("kv_usage"), snapshot.window_s, width)
            graph = graph_rows(drawn, height - len(rows), top=1.0)
            rows += [styled(row, "graph") for row in graph]
        return rows

    def _line(self, label: str, name: str, note: str, part: str, width: int) -> Row:
        share: float | None = getattr(self.snapshot.sample, name) if self.snapshot else None
        head = styled(label.ljust(_LABEL_WIDTH), "label")
        if share is None and self.snapshot is not None:
            reason = why_absent(name, self.snapshot.sample.engine)
            return head + styled(f"n/a: {reason}", "note")
        bar_width = max(4, width - _LABEL_WIDTH - _PERCENT_WIDTH - _BLOCKS_WIDTH)
        return (
            *head,
            (bar(share, bar_width), part),
            (formatting.percent(share).rjust(_PERCENT_WIDTH), "value"),
            (note.rjust(_BLOCKS_WIDTH), "note"),
        )


def _facts(snapshot: Snapshot | None) -> str:
    if snapshot is None:
        return ""
    sample, parts = snapshot.sample, []
    free = _free_blocks(sample)
    if free is not None:
        parts.append(f"free {free:,} blocks")
    if sample.kv_usage is not None and sample.kv_capacity_tokens:
        tokens = round(sample.kv_usage * sample.kv_capacity_tokens)
        parts.append(f"{tokens:,} of {sample.kv_capacity_tokens:,} tokens")
    highest = snapshot.peak("kv_usage")
    if highest is not None:
        stretch = formatting.window(snapshot.window_s)
        parts.append(f"peak {formatting.percent(highest)} in {stretch}")
    return " · ".join(parts)


def _free_blocks(sample: MetricsSample) -> int | None:
    """As the share in use tells it, so that the null block is not counted."""
    if sample.kv_blocks_used is None or not sample.kv_usage:
        return None if sample.kv_blocks_used is None else _usable(sample)
    return round(sample.kv_blocks_used / sample.kv_usage) - sample.kv_blocks_used


def _usable(sample: MetricsSample) -> int | None:
    """Each of these two keeps one block to itself."""
    total = sample.kv_blocks_total
    return total - 1 if total and sample.engine in ("vllm", "stoker") else total


def _size(snapshot: Snapshot) -> str:
    sample = snapshot.sample
    parts = []
    if sample.block_size is not None:
        parts.append(f"{sample.block_size} tokens per block")
    if sample.max_concurrency is not None:
        parts.append(f"room for {sample.max_concurrency:.2f} requests of full length")
    return " · ".join(parts)
