"""One number with its recent history under it."""

from __future__ import annotations

from app.client import formatting
from app.client.metrics.absence import why_absent
from tui.state.history import Snapshot
from tui.widgets.charts.history_graph import columns, graph_rows
from tui.widgets.panel import Panel, wrapped
from tui.widgets.rows import Row, styled


class MetricTile(Panel):
    """`name` is a rate of a history point; `counter` is the field of the sample it comes from.

    `reported` is the field with the server's own average, shown until something was measured.
    """

    def __init__(
        self, title: str, name: str, counter: str, reading: str, *, reported: str = "", id: str
    ) -> None:
        super().__init__(id=id)
        self._reported = reported
        self.border_title = title
        self.reading = ((title, reading),)
        self._rate = name
        self._counter = counter

    def show(self, snapshot: Snapshot | None) -> None:
        self.show_window(snapshot)
        super().show(snapshot)

    def rows(self, width: int, height: int) -> list[Row]:
        """The number, the peak of what is drawn, and the graph."""
        snapshot = self.snapshot
        if snapshot is not None and getattr(snapshot.sample, self._counter) is None:
            reason = why_absent(self._counter, snapshot.sample.engine)
            return [styled("n/a", "value"), *wrapped(reason, width, height - 1)]
        series = snapshot.series(self._rate) if snapshot else ()
        drawn = columns(series, snapshot.window_s if snapshot else 1.0, width)
        number = formatting.rate(snapshot.point.value(self._rate) if snapshot else None)
        highest = snapshot.peak(self._rate) if snapshot else None
        note = "" if highest is None else f"peak {formatting.rate(highest)}"
        reported = getattr(snapshot.sample, self._reported, None) if snapshot else None
        if reported is not None and not highest:
            note = f"avg {formatting.rate(reported)}"  # of the server: we have seen nothing yet
        if len(number) + len(note) + 1 > width:
            note = ""
        head = (number, "value"), (note.rjust(width - len(number)), "note")
        graph = graph_rows(drawn, height - 1)
        return [head, *(styled(row, "graph") for row in graph)]


def traffic_tiles() -> tuple[MetricTile, ...]:
    """The three rates of the overview."""
    return (
        MetricTile(
            "Prompt tok/s",
            "prompt_tokens_per_s",
            "prompt_tokens",
            "prompt tokens of requests whose prompt is done, per second between two samples",
            reported="reported_prompt_rate",
            id="prompt-rate",
        ),
        MetricTile(
            "Generation tok/s",
            "generation_tokens_per_s",
            "generation_tokens",
            "generated tokens per second between two samples; a restart is noted at the top",
            reported="reported_generation_rate",
            id="generation-rate",
        ),
        MetricTile(
            "Requests/s",
            "finished_per_s",
            "finished",
            "finished requests per second between two samples",
            id="request-rate",
        ),
    )
