"""What one single line of a log means: the rules that know it, and what they read from it."""

from __future__ import annotations

from dataclasses import dataclass

from logparse.line import LogLine, split_line
from logparse.parser import ALL_RULES
from logparse.phases import PHASE_NAMES
from logparse.redact import safe_text
from logparse.rules import Rule, RuleIndex, Value, shown_values

_INDEX = RuleIndex(ALL_RULES)


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
    found = []
    for entry in _INDEX.candidates(line.message):
        if line.message.startswith(entry.starts) and (match := entry.find(line.message)):
            values = {key: _safe(value) for key, value in shown_values(entry, match).items()}
            found.append(_meaning(entry, values))
    return tuple(found)


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
