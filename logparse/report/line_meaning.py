"""What a line of a log means: the rules that know it, and what they read from it. And the lines
worth listing: those that failed, and those of one phase.
"""

from __future__ import annotations

from dataclasses import dataclass

from logparse.problems.candidate import problem_of
from logparse.problems.failures import FailureTracker
from logparse.reading.line import LogLine, split_line
from logparse.reading.wraps import WRAP
from logparse.redact import safe_text
from logparse.report.insight import request_error_of, warning_of
from logparse.report.phases import PHASE_NAMES
from logparse.rules.rule import LETTERS, Rule, RuleIndex, Value, shown_values
from logparse.rules.table import LED_RULES
from logparse.rules.unled import UNLED_RULES

_INDEX = RuleIndex(LED_RULES)
_MAX_LINES = 1000
_MAX_TEXT = 400


@dataclass(frozen=True, slots=True)
class LineMeaning:
    """One rule's view of a line. `source` is the engine's file that prints it."""

    rule_id: str
    engine: str
    meaning: str
    phase: str | None
    source: str | None
    versions: str | None
    values: dict[str, Value]


@dataclass(frozen=True, slots=True)
class ExplainedLine:
    """The line taken apart; without meanings, no rule knows it."""

    process: str | None
    pid: int | None
    level: str | None
    stamp: str | None
    message: str
    meanings: tuple[LineMeaning, ...]


def explain_line(text: str) -> ExplainedLine:
    """Take the line apart and name what it says; wrappers, colours and headers may be on it."""
    line = split_line(text.strip("\r\n"))
    return ExplainedLine(
        process=line.process and safe_text(line.process),
        pid=int(line.pid) if line.pid else None,
        level=line.level,
        stamp=line.stamp,
        message=safe_text(line.message),
        meanings=_meanings(line),
    )


def _meanings(line: LogLine) -> tuple[LineMeaning, ...]:
    message = line.message
    known = _matching(_INDEX.for_letters(message[:LETTERS]), message)
    return known or _matching(UNLED_RULES, message) or _told_elsewhere(message)


def _matching(rules: tuple[Rule, ...], message: str) -> tuple[LineMeaning, ...]:
    found = []
    for entry in rules:
        if message.startswith(entry.starts) and (match := entry.find(message)):
            values = {key: _safe(value) for key, value in shown_values(entry, match).items()}
            found.append(_meaning(entry, values))
    return tuple(found)


def _told_elsewhere(message: str) -> tuple[LineMeaning, ...]:
    """Of a line that no rule knows: what it says as a warning, a lost request or a cause."""
    known = warning_of(message) or request_error_of(message)
    if known is not None:
        return (LineMeaning(known.id, "", f"{known.title}. {known.why}", None, None, None, {}),)
    problem = problem_of(message)
    if problem is not None:
        return (LineMeaning(problem.id, problem.engine, problem.why, None, None, None, {}),)
    return ()


def _meaning(entry: Rule, values: dict[str, Value]) -> LineMeaning:
    return LineMeaning(
        entry.id,
        entry.engine,
        entry.meaning,
        phase_of(entry),
        entry.source or None,
        entry.versions or None,
        values,
    )


def phase_of(entry: Rule) -> str | None:
    """The name of the phase that the rule's lines belong to."""
    return PHASE_NAMES[entry.belongs_to - 1] if entry.belongs_to is not None else None


def _safe(value: Value) -> Value:
    return safe_text(value, 1000) if isinstance(value, str) else value


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
