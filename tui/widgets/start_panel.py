"""A start as it goes: phases with times and progress, live from the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from tui.widgets.panel import Panel, wrapped
from tui.widgets.rows import Row, styled

if TYPE_CHECKING:
    from tui.state.start_progress import StartProgress


class StartPanel(Panel):
    """Stands in place of the numbers until there are some."""

    TITLE = "Start"
    READING: ClassVar[tuple[tuple[str, str], ...]] = (
        ("phases", "✓ over, … runs, ✗ failed; times are the log's, of the running one ours"),
        ("progress", "the newest progress bar in the log"),
    )

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.progress: StartProgress | None = None
        self.now_s = 0.0
        self.reason = ""

    def show_start(self, progress: StartProgress | None, now_s: float, reason: str) -> None:
        """Draw another state; `reason` stands there where no log tells the phases."""
        self.progress, self.now_s, self.reason = progress, now_s, reason
        self.redraw()

    def rows(self, width: int, height: int) -> list[Row]:
        """One row a phase, then what went wrong."""
        if self.progress is None or not self.progress.num_lines:
            return [styled("starting", "value"), *wrapped(self.reason, width, height - 1)]
        rows = []
        for row in self.progress.rows(self.now_s):
            part = "label" if row.mark == " " else "value"
            rows.append(styled(f"{row.mark} {row.name:<34}{row.time.rjust(10)}", part))
            if row.detail:
                rows.append(styled(f"    {row.detail}", "note"))
        if self.progress.trouble:
            rows += [(), *wrapped(self.progress.trouble, width, height - len(rows) - 1)]
        return rows
