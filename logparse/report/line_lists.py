"""Lines of a log worth listing: those that failed, and those of one phase."""

from __future__ import annotations

from dataclasses import dataclass

from logparse.problems.failures import FailureTracker
from logparse.reading.line import split_line
from logparse.reading.wraps import WRAP
from logparse.redact import safe_text
from logparse.report.line_meaning import explain_line

_MAX_LINES = 1000
_MAX_TEXT = 400


@dataclass(slots=True)
class ListedLine:
    """`count` is how often the same text came; the number is that of the first."""

    number: int
    process: str | None
    kind: str  # error, exception, usage, death, plain; or the id of the rule
    text: str
    count: int = 1


class ErrorLines:
    """ERROR lines, and the last line of each traceback instead of all of it."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str | None, str], ListedLine] = {}
        self._tracker = FailureTracker()

    def take(self, number: int, text: str) -> None:
        """One line of the log."""
        line = split_line(_last_part(text))
        if line.level not in (None, "ERROR", "CRITICAL"):
            return
        found = self._tracker.observe(number, line[:2], line.level, line.message)
        if found is None:
            return
        self._tracker = self._tracker if self._tracker.has_room else FailureTracker()
        key = (found.process, found.text)
        if key in self.lines:
            self.lines[key].count += 1
        elif len(self.lines) < _MAX_LINES:
            shown = safe_text(found.text, _MAX_TEXT)
            process = found.process and safe_text(found.process)
            kind = found.kind if line.level is None or found.kind == "exception" else "error"
            self.lines[key] = ListedLine(number, process, kind, shown)


class PhaseLines:
    """Lines that a rule knows as part of one phase."""

    def __init__(self, phase: str) -> None:
        self.lines: dict[tuple[str | None, str], ListedLine] = {}
        self._phase = phase

    def take(self, number: int, text: str) -> None:
        """One line of the log."""
        line = explain_line(_last_part(text))
        meaning = next((m for m in line.meanings if m.phase == self._phase), None)
        if meaning is None:
            return
        key = (line.process, line.message)
        if key in self.lines:
            self.lines[key].count += 1
        elif len(self.lines) < _MAX_LINES:
            shown = line.message[:_MAX_TEXT]
            self.lines[key] = ListedLine(number, line.process, meaning.rule_id, shown)


def _last_part(text: str) -> str:
    """What a terminal would show of a line with carriage returns."""
    return text.rstrip("\r\n").replace(WRAP, "").rpartition("\r")[2]
