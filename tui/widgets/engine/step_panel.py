"""State, newest step, binding limit and prefix hits of the engine, each with its evidence."""

from __future__ import annotations

from typing import ClassVar

from app.client import formatting
from tui.state.engine_state import EngineState, activity_text, limit_text, step_text
from tui.state.limits import limit_from_metrics
from tui.widgets.panel import Panel
from tui.widgets.rows import Row

_LABEL_WIDTH = 12
_NO_GRAPH = "none: this engine replays no CUDA graphs, so no batch is padded"


class StepPanel(Panel):
    """Six labelled lines about the newest scheduler step and what limits it."""

    TITLE = "Scheduler"
    READING: ClassVar[tuple[tuple[str, str], ...]] = (
        ("stalled", "requests are there, and the engine ends and begins no step"),
        ("last step", "tokens of the newest step against its budget, and requests in the batch"),
        ("graph", "share of the steps that replay a CUDA graph; padding among their tokens"),
        ("limit", "what kept the last step from doing more, and the flag that moves it"),
    )

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.state = EngineState()

    def show_state(self, state: EngineState) -> None:
        self.state = state
        self.redraw()

    def rows(self, width: int, height: int) -> list[Row]:
        """Only the hit rate comes from /metrics, so only it is known of every engine."""
        rows = [
            ("state", self._engine() + activity_text(self.state)),
            *self._step_rows(),
            ("prefix hits", self._hits()),
        ]
        return [((label.ljust(_LABEL_WIDTH), "label"), (value, "value")) for label, value in rows]

    def _engine(self) -> str:
        """Which of several replicas these lines are about."""
        if self.state.sample is None or self.state.sample.scheduler.num_engines == 1:
            return ""
        scheduler = self.state.sample.scheduler
        return f"engine {scheduler.engine} of {scheduler.num_engines} (e: the next) · "

    def _step_rows(self) -> list[tuple[str, str]]:
        sample = self.state.sample
        if sample is None:
            return self._inferred_rows()
        limit, flag = limit_text(sample.scheduler, self.snapshot.sample if self.snapshot else None)
        return [
            ("last step", step_text(sample.scheduler)),
            ("graph", self._graphs() or _NO_GRAPH),
            ("limit", limit),
            ("moved by", flag),
        ]

    def _inferred_rows(self) -> list[tuple[str, str]]:
        """What the metrics of any engine let us say."""
        snapshot = self.snapshot
        if snapshot is None:
            return [(name, "n/a") for name in ("last step", "graph", "limit", "moved by")]
        mean = snapshot.point.tokens_per_step
        step = "n/a" if mean is None else f"{mean:,.1f} tokens on average since the last sample"
        limit, flag = limit_from_metrics(snapshot)
        return [
            ("last step", step),
            ("graph", self._graphs() or "n/a: no engine exports the graph it uses"),
            ("limit", limit),
            ("moved by", flag),
        ]

    def _graphs(self) -> str | None:
        """Over the window, else since the start; None where the server counts none."""
        snapshot = self.snapshot
        steps = None if snapshot is None else snapshot.sample.device_steps
        if snapshot is None or not steps:
            return None
        sample, share = snapshot.sample, snapshot.recent_graph_share
        padding, when = snapshot.recent_padding, f"last {formatting.window(snapshot.window_s)}"
        if share is None:
            share, when = (sample.graph_steps or 0) / steps, "since start"
            tokens = sample.graph_tokens
            padding = (sample.graph_padding_tokens or 0) / tokens if tokens else None
        padded = "" if padding is None else f", {formatting.percent(padding)} of tokens padding"
        return f"{formatting.percent(share)} of steps replayed{padded}; {when}"

    def _hits(self) -> str:
        snapshot = self.snapshot
        if snapshot is None or snapshot.sample.prefix_queries is None:
            return "n/a: the server does not count them"
        ever, recent = snapshot.sample.prefix_hit_rate, snapshot.recent_hit_rate
        if ever is None:
            return "n/a: no prompt yet"
        newest = "n/a, no prompt" if recent is None else formatting.percent(recent)
        stretch = formatting.window(snapshot.window_s)
        return f"{formatting.percent(ever)} since start; last {stretch} {newest}"
