"""What a start tells beside its facts: warnings that matter, where time went, how serving went.

One `InsightTracker` belongs to one start. Memory does not grow with the log.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from logparse.problems.request_errors import REQUEST_ERRORS
from logparse.problems.text import filled_fixes
from logparse.problems.warnings import WARNING_RULES, WarningRule
from logparse.reading.line import stamp_seconds
from logparse.records import Facts, Insight, Sample, Serving, WarningFound
from logparse.redact import safe_text
from logparse.report.gaps import GapTracker

_MAX_SAMPLES = 240  # then every other one is left out
_MAX_BURSTS = 50
_BURST_S = 10.0
_LINE = 300
_MAX_SEARCHED = 2000


@dataclass(slots=True)
class _Seen:
    rule: WarningRule
    line: str
    line_number: int
    count: int = 1


# Of lines without a level, those that may be warnings.
UNLEVELLED_STARTS = ("warning: ", "WARNING: ", "warn: ", "ggml_", "load_tensors: offloaded 0/")


class InsightTracker:
    """Fed with warnings, the log's clock and the lines whose rule `feeds` a history."""

    def __init__(self) -> None:
        self.gaps = GapTracker()
        self._warnings: dict[str, _Seen] = {}
        self._num_other = 0
        self._compiled: dict[str | None, float] = {}
        self._used_cache = False
        self._serving = _ServingTracker()

    def note_warning(self, line_number: int, message: str) -> None:
        """A line of level WARNING."""
        rule = warning_of(message[:_MAX_SEARCHED])
        if rule is None:
            self._num_other += 1
        else:
            self._count(rule, message[:_MAX_SEARCHED], line_number)

    def note_unlevelled(self, line_number: int, message: str) -> None:
        """A line that may be a warning whatever its level is: only known ones count."""
        rule = warning_of(message[:_MAX_SEARCHED])
        if rule is not None:
            self._count(rule, message[:_MAX_SEARCHED], line_number)

    def note_request(self, line_number: int, message: str) -> None:
        """A line that may tell of a refused or lost request."""
        rule = request_error_of(message[:_MAX_SEARCHED])
        if rule is not None:
            self._count(rule, message[:_MAX_SEARCHED], line_number)

    def _count(self, rule: WarningRule, line: str, line_number: int) -> None:
        seen = self._warnings.get(rule.id)
        if seen is None:
            self._warnings[rule.id] = _Seen(rule, safe_text(line, _LINE), line_number)
        else:
            seen.count += 1

    def note_line(
        self,
        rule_id: str,
        match: re.Match[str],
        process: str | None,
        stamp: str | None,
        line_number: int,
    ) -> None:
        """A line whose rule `feeds` a history."""
        if rule_id == "throughput":
            self._serving.sample(match, stamp, line_number)
        elif rule_id == "preempted-v0":
            self._serving.preempted(stamp, line_number)
        elif rule_id == "compile-time":
            self._compiled[process] = self._compiled.get(process, 0.0) + _seconds(match[2])
        elif rule_id == "compile-cached":
            self._used_cache = True
        else:
            self.note_unlevelled(line_number, match.string)

    def insight(self, facts: Facts, engine: str | None) -> Insight:
        """All that is known now."""
        warnings = sorted(self._warnings.values(), key=lambda s: (s.rule.rank, s.line_number))
        return Insight(
            warnings=tuple(_found(seen, facts, engine) for seen in warnings),
            num_other_warnings=self._num_other,
            parts=self.gaps.parts(facts),
            compiled_s=max(self._compiled.values()) if self._compiled else None,
            used_compile_cache=self._used_cache,
            serving=self._serving.summary(),
        )


@functools.lru_cache(maxsize=128)  # many servers repeat a warning for hours
def warning_of(message: str) -> WarningRule | None:
    """The warning that the message is."""
    return _holder(WARNING_RULES, message)


def request_error_of(message: str) -> WarningRule | None:
    """What the message says of a refused or lost request, if it does."""
    return _holder(REQUEST_ERRORS, message)


def _holder(rules: tuple[WarningRule, ...], message: str) -> WarningRule | None:
    """The first rule that has a clue in the message."""
    for rule in rules:
        for clue in rule.clues:
            if clue in message:
                return rule
    return None


class _ServingTracker:
    """Follows throughput, queue and preemptions while a server serves."""

    def __init__(self) -> None:
        self._samples: list[Sample] = []
        self._step = 1
        self._num_lines = 0
        self._peak = (-1.0, 0)
        self._most_waiting = 0
        self._num_preemptions = 0
        self._bursts: list[tuple[int, int]] = []
        self._last_preemption: float | None = None

    def sample(self, match: re.Match[str], stamp: str | None, line_number: int) -> None:
        """The groups of the rule `throughput`."""
        try:
            prompt, generation, usage = float(match[1]), float(match[2]), float(match[5])
        except ValueError:  # only dots and minus signs
            return
        running, waiting = int(match[3]), int(match[4])
        if usage > self._peak[0]:
            self._peak = (usage, line_number)
        self._most_waiting = max(self._most_waiting, waiting)
        if self._num_lines % self._step == 0:
            at = stamp_seconds(stamp) if stamp is not None else None
            self._samples.append(Sample(at, prompt, generation, running, waiting, usage))
            if len(self._samples) >= _MAX_SAMPLES:
                self._samples = self._samples[::2]
                self._step *= 2
        self._num_lines += 1

    def preempted(self, stamp: str | None, line_number: int) -> None:
        """One request lost its KV blocks."""
        self._num_preemptions += 1
        at = stamp_seconds(stamp) if stamp is not None else None
        last, self._last_preemption = self._last_preemption, at
        is_near = at is None or last is None or abs(at - last) <= _BURST_S
        if self._bursts and is_near:
            first, count = self._bursts[-1]
            self._bursts[-1] = (first, count + 1)
        elif len(self._bursts) < _MAX_BURSTS:
            self._bursts.append((line_number, 1))

    def summary(self) -> Serving | None:
        """None when the log has no such line."""
        if not self._num_lines and not self._num_preemptions:
            return None
        return Serving(
            samples=tuple(self._samples),
            num_lines=self._num_lines,
            peak_kv_percent=max(self._peak[0], 0.0),
            peak_line_number=self._peak[1],
            most_waiting=self._most_waiting,
            num_preemptions=self._num_preemptions,
            bursts=tuple(self._bursts),
        )


def _found(seen: _Seen, facts: Facts, engine: str | None) -> WarningFound:
    rule = seen.rule
    return WarningFound(
        id=rule.id,
        rank=rule.rank,
        title=rule.title,
        why=rule.why,
        fixes=filled_fixes(rule.fixes, facts, rule.engine or engine, is_own=bool(rule.engine)),
        line=seen.line,
        line_number=seen.line_number,
        count=seen.count,
    )


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
