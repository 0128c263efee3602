"""Which limit binds now, with the evidence, and the flag that moves it."""

from __future__ import annotations

import textwrap
from typing import ClassVar

from app.client import formatting
from tui.state.history import Snapshot
from tui.state.limits import limit_from_metrics
from tui.widgets.panel import Panel
from tui.widgets.rows import Row, styled


class LimitPanel(Panel):
    """Inferred from the metrics of any engine; the flag stands in the border."""

    TITLE = "Limit"
    READING: ClassVar[tuple[tuple[str, str], ...]] = (
        ("limit", "what keeps waiting requests from running, and what that is read from"),
        ("it seems", "inferred: this server's metrics do not name their limit; page 2 may"),
        ("moved by", "the server's flags that change it"),
    )

    core_load: float | None = None
    """Of this machine, where the server runs here."""

    def show(self, snapshot: Snapshot | None) -> None:
        flag = limit_from_metrics(snapshot, self.core_load)[1] if snapshot else "-"
        self.caption("" if flag == "-" else f"moved by {flag}")
        super().show(snapshot)

    def rows(self, width: int, height: int) -> list[Row]:
        """The limit with its evidence, over as many rows as it needs."""
        found = limit_from_metrics(self.snapshot, self.core_load) if self.snapshot else None
        text = found[0] if found else formatting.UNKNOWN
        if height == 1:
            return [styled(text, "value")]  # cut with an ellipsis
        rows = textwrap.wrap(text, max(8, width))[:height]
        return [styled(row, "value") for row in rows]
