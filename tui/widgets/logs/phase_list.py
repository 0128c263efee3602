"""The five phases of a start with their times, and below them how it ended and who wrote lines."""

from __future__ import annotations

from rich.text import Text
from textual.events import Click
from textual.message import Message
from textual.widget import Widget

from logparse import LogReport, explain
from logparse.report.explain import phase_time
from tui.state.start_progress import PHASE_MARKS


class PhaseList(Widget):
    """A click on a phase shows its lines only; so do the keys 1 to 5."""

    DEFAULT_CSS = """
    PhaseList { padding: 0 1; border: round $border; border-title-color: $foreground 85%; }
    """

    class PhaseChosen(Message):
        """A phase (1 to 5) was clicked."""

        def __init__(self, phase: int) -> None:
            super().__init__()
            self.phase = phase

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.border_title = "Phases"
        self._report: LogReport | None = None
        self._chosen: int | None = None

    def show(self, report: LogReport | None, chosen: int | None) -> None:
        self._report, self._chosen = report, chosen
        self.refresh()

    def on_click(self, event: Click) -> None:
        """The rows are the phases."""
        row = event.get_content_offset(self)
        if row is not None and row.y < 5:
            self.post_message(self.PhaseChosen(row.y + 1))

    def render(self) -> Text:
        if self._report is None:
            return Text("reading ...")
        rows = [self._phase(number) for number in range(5)]
        rows += [Text(), Text(explain(self._report).headline)]
        if self._report.processes:
            rows += [Text(), Text("processes", "bold")]
            rows += [self._pair(p.name, str(p.num_lines)) for p in self._report.processes]
        return Text("\n").join(rows)

    def _phase(self, number: int) -> Text:
        assert self._report is not None
        phase = self._report.phases[number]
        time = phase_time(phase) if phase.seconds is not None else ""
        row = self._pair(f"{number + 1}{PHASE_MARKS[phase.state]} {phase.name}", time)
        row.stylize("reverse" if number + 1 == self._chosen else "")
        return row

    def _pair(self, left: str, right: str) -> Text:
        width = self.content_size.width
        text = Text(left, no_wrap=True)
        text.truncate(max(1, width - len(right) - 1), overflow="ellipsis", pad=True)
        return text.append(f" {right}"[: max(0, width)])
