"""The streaming parser: one line in, events out, a report at any time.

Owns the walk of a line (wrappers, header, rules, failing lines), the counting, and where one
start ends and the next begins. Memory does not grow with the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from logparse.attempt import AttemptState
from logparse.problems.candidate import Candidate, Cause
from logparse.problems.problem import announces_end, is_server_program, usage_program
from logparse.problems.text import to_problem
from logparse.reading.line import LogLine, inside, seconds_between, split_line
from logparse.reading.progress import drop_overwritten, is_bar, is_bar_alone, read_bar
from logparse.reading.restore import restored_lines
from logparse.reading.wraps import WRAP
from logparse.records import (
    Attempt,
    Event,
    LineCounts,
    LogReport,
    Outcome,
    Problem,
    ProblemFound,
    ProgressMade,
    StartRepeated,
)
from logparse.redact import safe_text
from logparse.report.insight import UNLEVELLED_STARTS
from logparse.report.phases import PHASE_NAMES
from logparse.report.processes import engine_of, engine_of_processes, is_of_a_server, processes_of
from logparse.rules.rule import LETTERS, Mark, Rule, RuleIndex
from logparse.rules.table import LED_RULES

_candidates = RuleIndex(LED_RULES).for_letters

_CUT = re.compile(
    r"-{2,9}\s?output truncated|\[?\.{3}\s?(?:output )?truncated|<\.{3}|\b\d{1,9} (?:more )?lines "
    r"(?:omitted|skipped|truncated)"
    r"|Tail of logs",
    re.IGNORECASE,
)
_VERSION, _BEGINS, _DIED = (
    Mark.VERSION,
    Mark.BEGINS,
    Mark.DIED,
)  # reading them from the class is slow
_NOTHING: tuple[Event, ...] = ()
_OFFLINE_BAR = "Processed prompts"
_ACCESS = ' HTTP/1.1" '
_MAX_PROCESSES = 256
_MAX_ATTEMPTS = 100
_MAX_ANNOUNCED = 8  # of one start; the first cause is among the first candidates
_KEY_LINE = 400
_WEAK_KINDS = ("error", "tool", "announcement")
_LATER_MARKS = (Mark.SERVING, Mark.READY, Mark.HTTP, Mark.STOPPING, Mark.STOPPED, Mark.DIED)


class _Interrupted(NamedTuple):
    """A start that goes on if the server's lines go on behind a refused command line."""

    attempt: AttemptState
    counts: dict[tuple[str, str | None], int]
    counts_before: dict[tuple[str, str | None], int]


class LogParser:
    """Feed it the lines of a log as they come; ask for the report whenever it is wanted."""

    def __init__(self, *, tells_events: bool = True) -> None:
        """Without events `feed` tells nothing, which is faster; the report is the same."""
        self._tells_events = tells_events
        self.newest: LogLine | None = None  # the line fed last, taken apart; None if it was empty
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
        self._interrupted: _Interrupted | None = None
        self._last_message: str | None = None
        self._announced = 0

    # -- feeding -------------------------------------------------------------

    def feed(self, line: str) -> tuple[Event, ...]:
        """Take one physical line (its newline may be on it); what it told."""
        self._line_number += 1
        line = line.rstrip("\r\n")
        if not line:
            self._without_level += 1
            self.newest = None
            return _NOTHING
        if "\r" in line:
            return self._feed_joined(line) if WRAP in line else self._feed_overwritten(line)
        self.newest = parsed = split_line(line)
        if not self._tells_events:
            self._read(parsed, None)
            return _NOTHING
        events: list[Event] = []
        self._read(parsed, events)
        return tuple(events)

    def _feed_joined(self, line: str) -> tuple[Event, ...]:
        """A line that was cut at the width of a terminal; its number is that of the first piece."""
        pieces = line.split(WRAP)
        self._line_number -= 1
        events = self.feed("".join(pieces))
        self._line_number += len(pieces) - 1
        self._without_level += len(pieces) - 1
        return events

    def _feed_overwritten(self, line: str) -> tuple[Event, ...]:
        """A line in which carriage returns overwrite a bar; one physical line all the same."""
        events: list[Event] | None = [] if self._tells_events else None
        owner: LogLine | None = None
        for part in drop_overwritten(line):
            if events is None and owner is not None and is_bar_alone(part):
                continue
            parsed = split_line(part)
            if owner is None:
                owner = parsed
                self._read(parsed, events)
                continue
            parsed = inside(owner, parsed)
            if parsed.message or parsed.level is not None:
                self._read(parsed, events, is_counted=False)
        self.newest = owner
        if owner is None:
            self._without_level += 1
        return tuple(events) if events else _NOTHING

    # -- one line ------------------------------------------------------------

    def _read(self, line: LogLine, events: list[Event] | None, *, is_counted: bool = True) -> None:
        """What the line tells is added to `events`, if they are wanted."""
        process, pid, level, stamp, message, has_source = line
        if process is not None and is_counted:
            key = (process, pid)
            try:
                self._counts[key] += 1
            except KeyError:
                if len(self._counts) < _MAX_PROCESSES:
                    self._counts[key] = 1
        if has_source:
            self._source_headers += 1
        attempt = self._attempt
        if stamp is not None and stamp != attempt.last_stamp:
            attempt.note_stamp(stamp, self._last_message, message, self._line_number)
        if level is None:
            shows_bar = ("%" in message or "it/s]" in message) and is_bar(message)
            if is_counted:
                self._without_level += 1
                self._bars += shows_bar
            if shows_bar and _OFFLINE_BAR in message:
                self._read_offline_bar(message, events)
            if not message:
                pass
            elif not shows_bar:
                self._read_without_level(line, events)
            elif events is not None and (progress := read_bar(message)) is not None:
                events.append(ProgressMade(self._line_number, *progress))
            return
        rules = _candidates(message[:LETTERS])
        if self._interrupted is not None:
            self._resume(rules, line)
        if rules:
            self._apply_those(rules, line, events)
        elif stamp is None and not message.endswith(" 200 OK") and _ACCESS in message:
            attempt.insight.note_request(self._line_number, message)
        if level == "ERROR" or level == "CRITICAL":
            self._errors += is_counted
            self._read_failure(line, events)
            return
        if level == "WARNING":
            self._warnings += is_counted
            self._attempt.insight.note_warning(self._line_number, message)
        self._last_message = message

    def _read_offline_bar(self, message: str, events: list[Event] | None) -> None:
        """The engine in a script (`LLM`) has no address; it is ready when prompts are answered."""
        progress = read_bar(message)
        if progress is not None and progress.done > 0:
            told = self._attempt.answer_offline(self._line_number)
            if told and events is not None:
                events += told

    def _apply_those(
        self, rules: tuple[Rule, ...], line: LogLine, events: list[Event] | None
    ) -> bool:
        """Several rules may take something from one line; False when no rule knows it."""
        is_known = False
        message = line[4]
        for rule in rules:
            if message.startswith(rule.starts) and (match := rule.find(message)):
                is_known = True
                mark = rule.mark
                if mark is not None:
                    if mark is _VERSION or mark is _BEGINS:
                        self._begin(mark, rule.id, line, events)
                    elif mark is _DIED and line[2] is None:  # an ERROR line is read anyway
                        failures = self._attempt.failures_now
                        failures.announce(self._line_number, line[:2], message)
                self._attempt.apply(rule, match, line[:2], self._line_number, events)
        return is_known

    def _read_without_level(self, line: LogLine, events: list[Event] | None) -> None:
        """Tracebacks, other engines' plain lines."""
        message = line[4]
        failures = self._attempt.failures_now
        is_indented = message[:1] == " "
        if is_indented and failures.is_frame(line[:2], message):
            self._last_message = message
            return
        rules = _candidates(message[:LETTERS])
        if self._interrupted is not None:
            self._resume(rules, line)
        if rules and self._apply_those(rules, line, events):
            if "failed" in message and announces_end(message, None):
                failures.announce(self._line_number, line[:2], message)
            self._last_message = message
            return
        if _may_say_cut(message):
            self._attempt.is_cut |= _CUT.search(message[:2000] + message[-200:]) is not None
        if message.startswith(UNLEVELLED_STARTS):
            self._attempt.insight.note_unlevelled(self._line_number, message)
        if is_indented and failures.is_nothing(message):
            self._last_message = message
        else:
            self._read_failure(line, events)

    def _begin(self, mark: Mark, rule_id: str, line: LogLine, events: list[Event] | None) -> None:
        if self._begins_again(mark, rule_id, line):
            self._start_over(line)
            if events is not None:
                events.append(StartRepeated(self._line_number))
        if mark is _VERSION:
            self._attempt.version_owners.add((line.process, line.pid))
            self._attempt.version_lines.add((line.process, line.pid, rule_id))

    def _read_failure(self, line: LogLine, events: list[Event] | None) -> None:
        process, pid, level, _, message, _ = line
        owner = process, pid
        attempt = self._attempt
        if message:
            self._last_message = message
        if "rror" in message and (attempt.is_ready or not attempt.has_beginning):
            attempt.insight.note_request(self._line_number, message)
        candidate = attempt.failures_now.observe(self._line_number, owner, level, message)
        if candidate is None:
            return
        if candidate.kind == "usage" and attempt.had_begun_before(candidate):
            if not is_server_program(usage_program(candidate.text) or ""):
                attempt.failures_now.forget(candidate)  # of a program beside the server
                return
            # Somebody typed the next command.
            attempt.failures_now.forget(candidate)
            before = _Interrupted(attempt, dict(self._counts), self._counts_before)
            self._start_over(line)
            self._interrupted = before
            attempt = self._attempt
            attempt.failures.observe(self._line_number, owner, level, message)
            if events is not None:
                events.append(StartRepeated(self._line_number))
        if attempt.is_ready and "while attempting to bind on address" in candidate.text:
            attempt.lose_readiness()
        if events is not None:
            events += self._announce(candidate)

    def _announce(self, candidate: Candidate) -> list[Event]:
        """Tell of the likely cause; what is none by itself waits for the report."""
        if candidate.kind in _WEAK_KINDS or self._announced >= _MAX_ANNOUNCED:
            return []
        self._announced += 1
        cause = self._cause()
        if cause is None or cause.candidate is not candidate:
            return []
        return [ProblemFound(self._line_number, self._problem(cause))]

    # -- several starts ------------------------------------------------------

    def _begins_again(self, mark: Mark, rule_id: str, line: LogLine) -> bool:
        """Whether this line belongs to another start than the one being read."""
        attempt = self._attempt
        if attempt.is_stopped or attempt.failures.has_ended:
            return True
        if mark is _BEGINS:
            return False
        # A version is the first that a start prints.
        has_gone_on = attempt.has_gone_on
        if not attempt.version_owners:
            return has_gone_on
        if (line.process, line.pid) in attempt.version_owners:
            # In a container each start has the same pid.
            is_repeated = (line.process, line.pid, rule_id) in attempt.version_lines
            return has_gone_on and (line.pid is None or attempt.is_past_beginning or is_repeated)
        if line.process is None and line.pid is not None:
            return False  # llama-server as a router starts a process for a model
        if line.process is None or line.process == "APIServer":
            return True  # another release, whose processes have other names
        if line.process.lower().startswith("apiserver") and has_gone_on:
            return True
        return any(process == line.process for process, _ in attempt.version_owners)

    def _start_over(self, line: LogLine) -> None:
        if len(self._earlier) < _MAX_ATTEMPTS:
            _, outcome, cause = self._ending()
            self._earlier.append(_summary(self._attempt.first_line, outcome, cause))
        self._attempt = AttemptState(first_line=self._line_number)
        if line.stamp is not None:
            self._attempt.note_stamp(line.stamp, None, line.message, self._line_number)
        # The line that begins a start is counted before it is read.
        self._counts_before = {**self._counts, **self._without_this(line)}
        self._announced = 0

    def _resume(self, rules: tuple[Rule, ...], line: LogLine) -> None:
        """Back to the start that was left for a refused command line, if this line is of it."""
        assert self._interrupted is not None
        before = self._interrupted
        message = line[4]
        if not rules and _ACCESS not in message:
            return  # nobody knows this line
        known = [rule for rule in rules if message.startswith(rule.starts) and rule.find(message)]
        if any(rule.mark is _BEGINS or rule.mark is _VERSION for rule in known):
            self._interrupted = None
            return
        is_later = _ACCESS in message or any(
            rule.feeds
            or rule.mark in _LATER_MARKS
            or (rule.phase or 0) >= max(2, before.attempt.phases.current)
            for rule in known
        )
        if is_later and (line.pid is None or line[:2] in before.counts):
            self._interrupted = None
            self._attempt, self._counts_before = before.attempt, before.counts_before
            if self._earlier:
                self._earlier.pop()

    def _without_this(self, line: LogLine) -> dict[tuple[str, str | None], int]:
        key = (line.process or "", line.pid)
        return {key: self._counts[key] - 1} if key in self._counts else {}

    # -- report --------------------------------------------------------------

    @property
    def num_lines(self) -> int:
        """Physical lines fed so far."""
        return self._line_number

    @property
    def phase(self) -> int:
        """The phase (1 to 5) that the line fed last belongs to, 0 before the first."""
        attempt = self._attempt
        return len(PHASE_NAMES) if attempt.is_ready else attempt.phases.current

    @property
    def is_stopping(self) -> bool:
        """Whether the server of the newest start was asked to stop."""
        return self._attempt.is_stopping

    def report(self) -> LogReport:
        """All that is known now. Can be asked for at any time."""
        attempt = self._attempt
        engine, outcome, cause = self._ending()
        problem = self._problem(cause) if cause is not None else None
        summaries = (*self._earlier, _summary(attempt.first_line, outcome, cause))
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
            is_offline=attempt.is_offline,
            ready_url=facts.server_url if is_ready else None,
            first_to_ready_s=_elapsed(attempt) if is_ready else None,
            processes=processes_of(self._counts, self._counts_before),
            lines=self._line_counts(),
            last_message=safe_text(self._last_message or "", _KEY_LINE) or None,
            attempts=summaries if len(summaries) > 1 else (),
            insight=attempt.insight.insight(facts, engine),
        )

    def _ending(self) -> tuple[str | None, Outcome, Cause | None]:
        """The engine, how this start ends as far as it was read, and why if it failed or died."""
        attempt, cause = self._attempt, self._cause()
        engine = self._engine(cause)
        is_server_log = engine is not None or is_of_a_server(cause)
        outcome = attempt.outcome(is_server_log=is_server_log, has_cause=cause is not None)
        return engine, outcome, cause if outcome in (Outcome.READY, Outcome.FAILED) else None

    def _line_counts(self) -> LineCounts:
        return LineCounts(
            self._line_number, self._without_level, self._bars, self._warnings, self._errors
        )

    def _cause(self) -> Cause | None:
        """Why the start failed, or why a ready server died; None while neither is seen."""
        attempt = self._attempt
        if attempt.is_ready:
            # Errors of single requests do not count; the server must have said that it died.
            late = attempt.late_failures
            has_ended = attempt.died or late.has_death
            return late.cause(trusts_error_lines=True) if has_ended else None
        is_own = bool(attempt.hits.get("stoker"))
        return attempt.failures.cause(trusts_error_lines=is_own, num_lines=self._line_number)

    def _problem(self, cause: Cause) -> Problem:
        return to_problem(cause, self._attempt.facts(), self._engine(cause))

    def _engine(self, cause: Cause | None) -> str | None:
        """By what only one engine prints; else by the cause, by names, by whose code failed."""
        attempt = self._attempt
        return (
            attempt.engine(self._source_headers)
            or engine_of(cause)
            or engine_of_processes(self._counts)
            or attempt.failures_now.engine
        )


def _summary(first_line: int, outcome: Outcome, cause: Cause | None) -> Attempt:
    if cause is None or outcome is not Outcome.FAILED:
        return Attempt(first_line, outcome, None, None)
    shown = cause.key_line
    return Attempt(first_line, outcome, safe_text(shown.text, _KEY_LINE), shown.line_number)


def _elapsed(attempt: AttemptState) -> float | None:
    start, end = attempt.started_at, attempt.ready_at
    if start is None or end is None or not attempt.has_beginning:
        return None
    return seconds_between(start, end)


def _may_say_cut(message: str) -> bool:
    return (
        "runcated" in message
        or "omitted" in message
        or "skipped" in message
        or "<..." in message
        or "Tail of logs" in message
    )


def parse_lines(lines: Iterable[str]) -> LogReport:
    """The report of a whole log."""
    parser = LogParser(tells_events=False)
    for line in restored_lines(lines):
        parser.feed(line)
    return parser.report()


__all__ = ["PHASE_NAMES", "LogParser", "parse_lines"]
