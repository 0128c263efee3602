"""A line that may name the cause of a failure, and the rule of the table that explains it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from logparse.problems.problem import ProblemRule, quoted_cause, usage_program
from logparse.problems.table import LAST_RESORTS, PROBLEM_RULES

MAX_TEXT = 6000
_AT_ONCE = 30  # rules


@dataclass(slots=True)
class Candidate:
    """A line that may name the cause; `more` are the lines of the same message that follow it."""

    line_number: int
    process: str | None
    pid: str | None
    text: str
    kind: str  # exception, usage, plain, death, error, tool, announcement
    functions: tuple[str, ...] = ()
    place: str | None = None  # file, line and function that raised it
    source: str = ""  # the line of code there
    own_place: str | None = None  # the deepest frame in the engine's own code
    more: list[str] = field(default_factory=list)
    points_elsewhere: bool = False
    field: str | None = None  # of a configuration, that this line is about
    matched_with: int = -1  # how many of `more` were there when `cause` was looked for
    cause: Cause | None = None

    @property
    def whole(self) -> str:
        """The text that patterns are matched against."""
        field = () if self.field is None else (f"for {self.field}",)
        return "\n".join((self.text, *field, *self.more))


@dataclass(frozen=True, slots=True)
class Cause:
    """The chosen line and, when its wording is known, the rule that explains it."""

    candidate: Candidate
    rule: ProblemRule | None
    values: dict[str, str]
    key_line: Candidate


def cause_of(candidate: Candidate) -> Cause | None:
    """The first rule that explains it; asked for again and again while the log is read."""
    if candidate.matched_with != len(candidate.more):
        candidate.matched_with = len(candidate.more)
        candidate.cause = _explain(candidate)
    return candidate.cause


@functools.cache
def _clues_from(first: int) -> tuple[tuple[str, int], ...]:
    """What must be in the text for one of the next rules to match, and the rule's place; "" where
    nothing must. For some at a time: to find the clues of all takes longer than to read a start.
    """
    return tuple(
        (clue, place)
        for place, entry in enumerate(PROBLEM_RULES[first : first + _AT_ONCE], first)
        for pattern in entry.patterns
        for clue in pattern.clues or ("",)
    )


def _explain(candidate: Candidate) -> Cause | None:
    found = _explain_text(candidate, candidate.whole)
    if found is None and candidate.more:  # a message that somebody broke into lines
        found = _explain_text(
            candidate, " ".join(map(str.strip, (candidate.text, *candidate.more)))
        )
    return found


def _likely_places(text: str) -> Iterator[int]:
    for first in range(0, len(PROBLEM_RULES), _AT_ONCE):
        yield from sorted({place for clue, place in _clues_from(first) if clue in text})


def _explain_text(candidate: Candidate, whole: str) -> Cause | None:
    for place in _likely_places(whole):
        entry = PROBLEM_RULES[place]
        if not entry.allows(candidate.functions, candidate.place):
            continue
        if entry.is_of_usage and candidate.kind != "usage":
            continue
        values = entry.match(whole)
        if values is not None:
            return Cause(candidate, entry, values, candidate)
    return None


def problem_of(text: str) -> ProblemRule | None:
    """The cause that a single line names, whatever raised it."""
    kind = "usage" if usage_program(text) is not None else "exception"
    found = cause_of(Candidate(0, None, None, text[:MAX_TEXT], kind))
    return found.rule if found is not None else None


def last_resort(candidates: list[Candidate]) -> Cause:
    """Only wrappers were seen: what they say of the end of the process, if anything."""
    *told, untold = LAST_RESORTS
    for entry in told:
        for candidate in candidates:
            if (values := entry.match(candidate.whole)) is not None:
                return Cause(candidate, entry, values, candidate)
    for candidate in candidates:
        if candidate.kind == "announcement" or untold.match(candidate.whole) is not None:
            return Cause(candidate, untold, {}, candidate)
    return Cause(candidates[0], None, {}, candidates[0])


def first_quoted(candidates: list[Candidate]) -> Cause | None:
    """A wrapper that holds the words of the cause, when the log has them nowhere else."""
    for candidate in candidates:
        inner = quoted_cause(candidate.text)
        if inner is not None:
            found = cause_of(replace(candidate, text=inner, matched_with=-1))
            quoted = found or Cause(replace(candidate, text=inner), None, {}, candidate)
            return replace(quoted, key_line=candidate)
    return None


def first_known(candidates: list[Candidate]) -> Cause | None:
    general = None
    for candidate in candidates:
        found = cause_of(candidate)
        if found is None or found.rule is None:
            continue
        if not found.rule.is_general:
            return found
        general = general or found
    return general
