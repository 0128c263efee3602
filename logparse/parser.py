"""The streaming parser: one line in, events out, a report at any time.

Owns the walk of a line (wrappers, header, rules, failing lines), the counting, and where one
start ends and the next begins. Memory does not grow with the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from logparse.attempt import AttemptState
from logparse.failures import Candidate, Cause
from logparse.line import LogLine, seconds_between, split_line
from logparse.llamacpp_rules import LLAMACPP_RULES
from logparse.phases import PHASE_NAMES
from logparse.problem_text import to_problem
from logparse.progress import drop_overwritten, is_bar, read_bar
from logparse.records import (
    Attempt,
    Event,
    LineCounts,
    LogReport,
    Outcome,
    Problem,
    ProblemFound,
    Process,
    ProgressMade,
    StartRepeated,
)
from logparse.redact import safe_text
from logparse.rules import Mark, Rule, RuleIndex
from logparse.sglang_rules import SGLANG_RULES
from logparse.vllm_rules import VLLM_RULES

ALL_RULES: tuple[Rule, ...] = (*VLLM_RULES, *LLAMACPP_RULES, *SGLANG_RULES)
_INDEX = RuleIndex(ALL_RULES)

_CUT = re.compile(
    r"-{2,9}\s?output truncated|\[?\.{3}\s?(?:output )?truncated|<\.{3}|\b\d{1,9} (?:more )?lines "
    r"(?:omitted|skipped|truncated)"
    r"|Tail of logs",
    re.IGNORECASE,
)
_DIGITS = re.compile(r"[0-9]{1,18}")
_MAX_PROCESSES = 256
_MAX_ATTEMPTS = 100
_MAX_ANNOUNCED = 8  # of one start; the first cause is among the first candidates
_KEY_LINE = 400


class LogParser:
    """Feed it the lines of a log as they come; ask for the report whenever it is wanted."""

    def __init__(self) -> None:
        self._line_number = 0
        self._without_level = 0
        self._bars = 0
        self._warnings = 0
        self._errors = 0
        self._source_headers = 0
        # Lines by (process, pid) of the whole log, and what they were when this start began.
        self._counts: dict[tuple[str, str | None], int] = {}
        self._counts_before: dict[tuple[str, str | None], int] = {}
        self._attempt = AttemptState(first_line=1)
        self._earlier: list[Attempt] = []
        self._last_message: str | None = None
        self._announced = 0

    # -- feeding -------------------------------------------------------------

    def feed(self, line: str) -> tuple[Event, ...]:
        """Take one physical line (its newline may be on it); what it told."""
        self._line_number += 1
        line = line.rstrip("\r\n")
        if not line:
            self._without_level += 1
            return ()
        if "\r" in line:
            return self._feed_overwritten(line)
        parsed = split_line(line)
        self._count(parsed)
        return tuple(self._read(parsed))

    def _feed_overwritten(self, line: str) -> tuple[Event, ...]:
        """A line in which carriage returns overwrite a bar; one physical line all the same."""
        events: list[Event] = []
        owner: LogLine | None = None
        for part in drop_overwritten(line):
            parsed = split_line(part)
            if owner is None:
                owner = parsed
            elif parsed.process is None:
                parsed = parsed._replace(process=owner.process, pid=owner.pid)
            if parsed.message or parsed.level is not None:
                events += self._read(parsed)
        if owner is not None:
            self._count(owner)
        else:
            self._without_level += 1
        return tuple(events)

    def _count(self, line: LogLine) -> None:
        level = line.level
        if level is None:
            self._without_level += 1
            if is_bar(line.message):
                self._bars += 1
        elif level == "WARNING":
            self._warnings += 1
        elif level == "ERROR" or level == "CRITICAL":
            self._errors += 1
        if line.process is not None:
            key = (line.process, line.pid)
            if key in self._counts:
                self._counts[key] += 1
            elif len(self._counts) < _MAX_PROCESSES:
                self._counts[key] = 1

    # -- one line ------------------------------------------------------------

    def _read(self, line: LogLine) -> list[Event]:
        message, level = line.message, line.level
        if line.has_source:
            self._source_headers += 1
        if level is not None and level != "ERROR" and level != "CRITICAL":
            if line.stamp is not None:
                self._attempt.note_stamp(line.stamp)
            self._last_message = message
            return self._apply_all(line) or []
        return self._read_unusual(line)

    def _apply_all(self, line: LogLine) -> list[Event] | None:
        """Several rules may take something from one line; None when no rule knows it."""
        events: list[Event] | None = None
        message = line.message
        for rule in _INDEX.candidates(message):
            if message.startswith(rule.starts) and (match := rule.pattern.match(message)):
                events = (events or []) + self._apply(rule, match, line)
        return events

    def _read_unusual(self, line: LogLine) -> list[Event]:
        """ERROR lines and lines without a level: bars, tracebacks, other engines' plain lines."""
        message = line.message
        if line.stamp is not None:
            self._attempt.note_stamp(line.stamp)
        if line.level is None and is_bar(message):
            progress = read_bar(message)
            return (
                [ProgressMade(self._line_number, safe_text(progress.text, 200), *progress[1:])]
                if progress
                else []
            )
        events = self._apply_all(line)
        if events is not None and line.level is None:
            return events
        if line.level is None and _may_say_cut(message):
            self._attempt.is_cut |= _CUT.search(message[:2000] + message[-200:]) is not None
        return (events or []) + self._read_failure(line)

    def _apply(self, rule: Rule, match: re.Match[str], line: LogLine) -> list[Event]:
        events: list[Event] = []
        if rule.mark is not None and self._begins_again(rule.mark, line):
            events.append(self._start_over(line))
        if rule.mark is Mark.VERSION:
            self._attempt.version_owners.add((line.process, line.pid))
        if line.stamp is not None:
            self._attempt.note_stamp(line.stamp)
        events += self._attempt.apply(rule, match, line.process, self._line_number)
        return events

    def _read_failure(self, line: LogLine) -> list[Event]:
        attempt = self._attempt
        if line.message:
            self._last_message = line.message
        tracker = attempt.late_failures if attempt.is_ready else attempt.failures
        candidate = tracker.observe(self._line_number, line.process, line.level, line.message)
        if candidate is None:
            return []
        if attempt.is_ready and "while attempting to bind on address" in candidate.text:
            attempt.lose_readiness()
            attempt.failures = attempt.late_failures
        return self._announce(candidate)

    def _announce(self, candidate: Candidate) -> list[Event]:
        """Tell of the likely cause; ERROR lines alone wait for the report."""
        if candidate.kind == "error" or self._announced >= _MAX_ANNOUNCED:
            return []
        self._announced += 1
        cause = self._cause()
        if cause is None or cause.candidate is not candidate:
            return []
        return [ProblemFound(self._line_number, self._problem(cause))]

    # -- several starts ------------------------------------------------------

    def _begins_again(self, mark: Mark, line: LogLine) -> bool:
        """Whether this line belongs to another start than the one being read."""
        attempt = self._attempt
        if mark not in (Mark.VERSION, Mark.BEGINS):
            return False
        if attempt.is_stopped or attempt.failures.has_ended:
            return True
        if mark is Mark.BEGINS or not attempt.version_owners:
            return False
        if (line.process, line.pid) in attempt.version_owners:
            return line.pid is None and (attempt.failures.has_failed or attempt.was_ready)
        return any(process == line.process for process, _ in attempt.version_owners)

    def _start_over(self, line: LogLine) -> StartRepeated:
        report = self.report()
        problem = report.problem
        if len(self._earlier) < _MAX_ATTEMPTS:
            self._earlier.append(_summary(self._attempt.first_line, report.outcome, problem))
        self._attempt = AttemptState(first_line=self._line_number)
        # The line that begins a start is counted before it is read.
        self._counts_before = {**self._counts, **self._without_this(line)}
        self._announced = 0
        return StartRepeated(self._line_number)

    def _without_this(self, line: LogLine) -> dict[tuple[str, str | None], int]:
        key = (line.process or "", line.pid)
        return {key: self._counts[key] - 1} if key in self._counts else {}

    # -- report --------------------------------------------------------------

    def report(self) -> LogReport:
        """All that is known now. Can be asked for at any time."""
        attempt = self._attempt
        engine = attempt.engine(self._source_headers)
        cause = self._cause()
        engine = engine or _engine_of(cause)
        outcome = attempt.outcome(is_server_log=engine is not None, has_cause=cause is not None)
        if outcome not in (Outcome.READY, Outcome.FAILED):
            cause = None
        problem = self._problem(cause) if cause is not None else None
        summaries = (*self._earlier, _summary(attempt.first_line, outcome, problem))
        facts, is_ready = attempt.facts(), outcome is Outcome.READY
        ready_at = attempt.ready_at if is_ready else None
        return LogReport(
            outcome=outcome,
            engine=engine,
            facts=facts,
            phases=attempt.phases.phases(failed=outcome is Outcome.FAILED, ready_at=ready_at),
            problem=problem,
            died_after_ready=is_ready and cause is not None,
            was_stopped=attempt.is_stopping or attempt.is_stopped,
            ready_url=facts.server_url if is_ready else None,
            first_to_ready_s=_elapsed(attempt) if is_ready else None,
            processes=_processes(self._counts, self._counts_before),
            lines=self._line_counts(),
            last_message=safe_text(self._last_message or "", _KEY_LINE) or None,
            attempts=summaries if len(summaries) > 1 else (),
        )

    def _line_counts(self) -> LineCounts:
        return LineCounts(
            self._line_number, self._without_level, self._bars, self._warnings, self._errors
        )

    def _cause(self) -> Cause | None:
        """Why the start failed, or why a ready server died; None while neither is seen."""
        attempt = self._attempt
        if attempt.is_ready:
            # Errors of single requests do not count; the server must have said that it died.
            return attempt.late_failures.cause(trusts_error_lines=True) if attempt.died else None
        return attempt.failures.cause(trusts_error_lines=bool(attempt.hits.get("stoker")))

    def _problem(self, cause: Cause) -> Problem:
        attempt = self._attempt
        engine = attempt.engine(self._source_headers) or _engine_of(cause)
        return to_problem(cause, attempt.facts(), engine)


def _engine_of(cause: Cause | None) -> str | None:
    """Whose command line refused its arguments, when the log holds nothing else."""
    if cause is None or cause.candidate.kind != "usage":
        return None
    text = cause.candidate.text[:200]
    if "vllm" in text or text.startswith("api_server.py"):
        return "vllm"
    return "stoker" if "stoker" in text or "engine" in text else None


def _summary(first_line: int, outcome: Outcome, problem: Problem | None) -> Attempt:
    if problem is None or outcome is not Outcome.FAILED:
        return Attempt(first_line, outcome, None, None)
    return Attempt(first_line, outcome, problem.key_line, problem.key_line_number)


def _elapsed(attempt: AttemptState) -> float | None:
    start, end = attempt.started_at, attempt.ready_at
    return None if start is None or end is None else seconds_between(start, end)


def _may_say_cut(message: str) -> bool:
    return (
        "runcated" in message
        or "omitted" in message
        or "skipped" in message
        or "<..." in message
        or "Tail of logs" in message
    )


def _processes(
    counts: dict[tuple[str, str | None], int], before: dict[tuple[str, str | None], int]
) -> tuple[Process, ...]:
    """Those of this start in order of appearance, the ranks of one kind together and in order."""
    pids: dict[str, list[int]] = {}
    totals: dict[str, int] = {}
    for (name, pid), count in counts.items():
        if count > before.get((name, pid), 0):
            pids.setdefault(name, []).extend([int(pid)] if pid else [])
            totals[name] = totals.get(name, 0) + count - before.get((name, pid), 0)
    kinds = {name: _DIGITS.sub("#", name) for name in pids}
    places = {kind: place for place, kind in enumerate(dict.fromkeys(kinds.values()))}

    def order(name: str) -> tuple[int, list[int]]:
        return places[kinds[name]], [int(digits) for digits in _DIGITS.findall(name)]

    return tuple(
        Process(safe_text(name), tuple(pids[name]), totals[name])
        for name in sorted(pids, key=order)
    )


def parse_lines(lines: Iterable[str]) -> LogReport:
    """The report of a whole log."""
    parser = LogParser()
    for line in lines:
        parser.feed(line)
    return parser.report()


__all__ = ["ALL_RULES", "PHASE_NAMES", "LogParser", "parse_lines"]
