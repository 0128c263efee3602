"""How full the KV cache is: share in use, and share that holds reusable prefixes."""

from __future__ import annotations

from rich.text import Text

from tui import formatting
from tui.history import Snapshot
from tui.widgets.history_graph import bar
from tui.widgets.panel import Panel

_LABEL_WIDTH = 8
_PERCENT_WIDTH = 9
_BLOCKS_WIDTH = 25


class KVCacheBar(Panel):
    """Two bars over the same scale, with their numbers at the right."""

    TITLE = "KV cache"

    def show(self, snapshot: Snapshot | None) -> None:
        """Draw another snapshot; the size of the cache goes into the border."""
        self.border_subtitle = _size(snapshot) if snapshot else ""
        super().show(snapshot)

    def lines(self, width: int, height: int) -> list[Text]:
        """`used` and `cached`."""
        sample = self.snapshot.sample if self.snapshot else None
        total = sample.kv_blocks_total if sample else None
        used = sample.kv_blocks_used if sample else None
        cached_share = sample.kv_cached_share if sample else None
        blocks = f"{formatting.count(used)} / {formatting.count(total)} blocks"
        return [
            self._line("used", sample.kv_usage if sample else None, blocks, "graph", width),
            self._line("cached", cached_share, "reusable prefixes", "past", width),
        ]

    def _line(self, label: str, share: float | None, note: str, part: str, width: int) -> Text:
        bar_width = max(4, width - _LABEL_WIDTH - _PERCENT_WIDTH - _BLOCKS_WIDTH)
        return Text.assemble(
            self.styled(label.ljust(_LABEL_WIDTH), "label"),
            self.styled(bar(share, bar_width), part),
            self.styled(formatting.percent(share).rjust(_PERCENT_WIDTH), "value"),
            self.styled(note.rjust(_BLOCKS_WIDTH), "note"),
        )


def _size(snapshot: Snapshot) -> str:
    sample = snapshot.sample
    parts = []
    if sample.block_size is not None:
        parts.append(f"{sample.block_size} tokens per block")
    if sample.kv_capacity_tokens is not None:
        parts.append(f"{sample.kv_capacity_tokens:,} tokens in all")
    return " · ".join(parts)
