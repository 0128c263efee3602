"""What one single line of a log means: the rules that know it, and what they read from it."""

from __future__ import annotations

from dataclasses import dataclass

from logparse.problems.failures import problem_of
from logparse.reading.line import LogLine, split_line
from logparse.redact import safe_text
from logparse.report.insight import request_error_of, warning_of
from logparse.report.phases import PHASE_NAMES
from logparse.rules.rule import LETTERS, Rule, RuleIndex, Value, shown_values
from logparse.rules.table import LED_RULES
from logparse.rules.unled import UNLED_RULES

_INDEX = RuleIndex(LED_RULES)


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
