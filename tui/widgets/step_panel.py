"""State, newest step, binding limit and prefix hits of the engine, each with its evidence."""

from __future__ import annotations

from rich.text import Text

from tui import formatting
from tui.engine_state import EngineState, activity_text, limit_text, step_text
from tui.widgets.panel import Panel

_LABEL_WIDTH = 12


class StepPanel(Panel):
    """Five labelled lines."""

    TITLE = "Scheduler"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.state = EngineState()

    def show_state(self, state: EngineState) -> None:
        """Draw another state."""
        self.state = state
        self.refresh()

    def lines(self, width: int, height: int) -> list[Text]:
        """Only the hit rate comes from /metrics, so only it is known of every engine."""
        rows = [
            ("state", activity_text(self.state)),
            *self._step_rows(),
            ("prefix hits", self._hits()),
        ]
        return [
            Text.assemble(
                self.styled(label.ljust(_LABEL_WIDTH), "label"), self.styled(value, "value")
            )
            for label, value in rows
        ]

    def _step_rows(self) -> list[tuple[str, str]]:
        sample = self.state.sample
        if sample is None:
            return [("last step", "n/a"), ("limit", "n/a"), ("moved by", "-")]
        limit, flag = limit_text(sample.scheduler)
        return [("last step", step_text(sample.scheduler)), ("limit", limit), ("moved by", flag)]

    def _hits(self) -> str:
        snapshot = self.snapshot
        if snapshot is None or snapshot.sample.prefix_queries is None:
            return "n/a: the server does not count them"
        ever, recent = snapshot.sample.prefix_hit_rate, snapshot.recent_hit_rate
        if ever is None:
            return "n/a: no prompt yet"
        newest = "n/a, no prompt" if recent is None else formatting.percent(recent)
        return f"{formatting.percent(ever)} since start; last minute {newest}"
