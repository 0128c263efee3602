"""What is known of one start of a server: facts, phases, failing lines, readiness.

The parser makes a new one when the log shows another start. Knows rules only as data.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

from logparse.problems.candidate import Candidate
from logparse.problems.failures import FailureTracker, Owner
from logparse.reading.line import stamp_seconds
from logparse.records import (
    Event,
    FactFound,
    Facts,
    FactValue,
    Outcome,
    ServerReady,
    ServerStopped,
)
from logparse.redact import safe_text
from logparse.report.insight import InsightTracker
from logparse.report.phases import PhaseTracker
from logparse.rules.rule import Keep, Mark, Rule, Take, Value, convert

# Reading a member from its class costs more than the comparison.
_ROUTES, _SERVING = Mark.ROUTES, Mark.SERVING
_FIRST, _LAST, _EACH, _LAST_PER_PROCESS = Keep.FIRST, Keep.LAST, Keep.EACH, Keep.LAST_PER_PROCESS
_CACHE = Keep.CACHE
_MAX_VALUES = 64  # ranks, devices or models with a value of their own
_MAX_ARGUMENTS = 20000
_MAX_UNTAKEN = 256


class AttemptState:
    """One start, fed with matched rules and failing lines in order."""

    def __init__(self, first_line: int) -> None:
        self.first_line = first_line
        self.has_beginning = False
        self.version_owners: set[tuple[str | None, str | None]] = set()
        self.version_lines: set[tuple[str | None, str | None, str]] = set()  # and the rule's id
        self.is_ready = False
        self.is_stopping = False
        self.is_stopped = False
        self.is_cut = False
        self.is_offline = False
        self.died = False
        self.failures = FailureTracker()
        self.late_failures = FailureTracker(is_serving=True)
        self.failures_now = self.failures  # those of the start, or of the time after it
        self.insight = InsightTracker()
        self.phases = PhaseTracker()
        self.hits: defaultdict[str, int] = defaultdict(int)  # lines by engine
        self._has_address = False
        self._is_window = False
        self._ready_stamp: str | None = None
        self._first_stamp: str | None = None
        self.last_stamp: str | None = None
        self._values: dict[str, dict[Hashable, Value]] = {}
        self._ranks: dict[str, int] = {}
        # The last line of each rule that tells a state: its values are read when asked for.
        self._newest: dict[str, tuple[Rule, re.Match[str], str | None]] = {}
        # Lines whose values are read when they are asked for: of most starts in a log nobody asks.
        self._untaken: list[tuple[tuple[Take, ...], re.Match[str], str | None]] = []

    # -- lines ---------------------------------------------------------------

    def note_stamp(self, stamp: str, before: str | None, message: str, line_number: int) -> None:
        """A line, also without a rule, whose stamp is not `last_stamp`; `before` is the message
        before it.
        """
        last, self.last_stamp = self.last_stamp, stamp
        if last is None:
            self._first_stamp = stamp
        elif not self.is_ready and not (
            # Most lines follow within a second; this is a tenth of the price of the calendar.
            last[:-2] == stamp[:-2] and int(stamp[-2:]) - int(last[-2:]) <= 1
        ):
            self.insight.gaps.note(last, stamp, before, message, line_number)

    def apply(
        self,
        rule: Rule,
        match: re.Match[str],
        owner: Owner,
        line_number: int,
        events: list[Event] | None,
    ) -> None:
        """A line that a rule explains; what it told is added to `events`, if they are wanted."""
        process = owner[0]
        if rule.engine:
            self.hits[rule.engine] += 1
        if rule.is_state and events is None:
            self._newest[rule.id] = (rule, match, process)
        elif rule.takes:
            if events is None and rule.takes[0].keep is not _CACHE:
                self._untaken.append((rule.takes, match, process))
                if len(self._untaken) > _MAX_UNTAKEN:
                    self._take_untaken()
            else:
                self._take_untaken()
                self._take_all(rule.takes, match, process, line_number, events)
        if rule.phase is not None and not self.is_ready:
            told = self._advance(rule, owner, line_number)
            if told and events is not None:
                events += told
        if rule.mark is not None:
            told = self._note_mark(rule.mark, line_number)
            if told and events is not None:
                events += told
        if rule.feeds:
            self.insight.note_line(rule.id, match, process, self.last_stamp, line_number)

    def _take_untaken(self) -> None:
        for takes, match, process in self._untaken:
            self._take_all(takes, match, process, 0, None)
        self._untaken.clear()

    def _take_all(
        self,
        takes: tuple[Take, ...],
        match: re.Match[str],
        process: str | None,
        line_number: int,
        events: list[Event] | None,
    ) -> None:
        for take in takes:
            value = self._take(take, match, process)
            if value is not None and events is not None:
                shown = _safe(value) if take.keep is _LAST else self._shown(take.key)
                if shown is not None:
                    events.append(FactFound(line_number, take.key, shown))
        if self._is_window and takes[0].keep is _CACHE:
            self._is_window = False

    def _advance(self, rule: Rule, owner: Owner, line_number: int) -> Sequence[Event]:
        assert rule.phase is not None
        self.failures.survived(*owner)
        is_new = self.phases.is_ahead(rule.phase)
        if not is_new and not rule.ends_phase:
            return ()
        at = self._clock(self.last_stamp)
        events: Sequence[Event] = ()
        if is_new:
            events = self.phases.enter(rule.phase, at, self.started_at, line_number)
        if rule.ends_phase:
            self.phases.note_end(rule.phase, at)
        return events

    def _take(self, take: Take, match: re.Match[str], process: str | None) -> Value | None:
        """The value, if it is one that was not known."""
        rank = self._ranks.get(take.key, -1)
        if take.rank < rank or (take.rank == rank and take.keep is _FIRST):
            return None
        groups = take.groups
        texts = match.group(*groups) if len(groups) > 1 else (match[groups[0]],)
        if None in texts:
            return None
        value = take.constant or convert(take.unit, texts)
        if value is None or value == "None":
            return None
        if take.prefix and isinstance(value, str):
            value = take.prefix + value
        return value if self._keep(take, value, process, rank) else None

    def _keep(self, take: Take, value: Value, process: str | None, rank: int) -> bool:
        """Store the value by the rule's policy; whether anything changed."""
        kept = self._values.setdefault(take.key, {})
        if take.rank > rank:
            self._ranks[take.key] = take.rank
            kept.clear()
        if take.keep is _CACHE:
            return self._keep_cache(kept, value)
        slot = _slot(take.keep, value, process)
        if kept.get(slot) == value or (slot not in kept and len(kept) >= _MAX_VALUES):
            return False
        kept[slot] = value
        return True

    def _keep_cache(self, kept: dict[Hashable, Value], value: Value) -> bool:
        """A cache of one more model, or of the last one's window."""
        if not self._is_window:
            if len(kept) >= _MAX_VALUES:
                return False
            kept[len(kept)] = value
            return True
        last = kept.get(len(kept) - 1)
        if not isinstance(last, float) or not isinstance(value, float):
            return False  # cells of the window: a request is as long as the other cache allows
        kept[len(kept) - 1] = round(last + value, 4)
        return True

    def _shown(self, key: str) -> FactValue | None:
        kept = self._values.get(key)
        if not kept:
            return None
        values = list(dict.fromkeys(map(_safe, kept.values())))
        if len(values) == 1:
            return values[0]
        numbers = tuple(value for value in values if isinstance(value, int | float))
        return numbers if len(numbers) == len(values) else values[-1]

    def _note_mark(self, mark: Mark, line_number: int) -> Sequence[Event]:
        if mark is _SERVING:
            return () if self.is_ready else self._become_ready(line_number)
        if mark is _ROUTES:
            if self._has_address and not self.is_ready:
                self._ready_stamp = self.last_stamp
        elif mark is Mark.BEGINS or mark is Mark.VERSION:
            self.has_beginning = True
        elif mark is Mark.LISTENING:
            self._has_address = True
        elif mark is Mark.READY:
            return self._become_ready(line_number)
        elif mark is Mark.HTTP and not self.hits.get("sglang"):
            # SGLang answers 503 until its own warm-up is over, and says so.
            return self._become_ready(line_number)
        elif mark is Mark.OFFLINE:
            return self.answer_offline(line_number)
        elif mark is Mark.CUT:
            self.is_cut = True
        elif mark is Mark.WINDOW:
            self._is_window = True
        elif mark is Mark.DIED:
            self._note_death()
        elif mark is Mark.STOPPING:
            self.is_stopping = True
        elif mark is Mark.STOPPED and not self.is_stopped:
            self.is_stopped = True
            return (ServerStopped(line_number),)
        return ()

    def _note_death(self) -> None:
        if self.is_ready and not self.died:
            self.died = True
            # What single requests raised in the API server before is not why the engine died.
            self.late_failures.survived("APIServer")

    def _become_ready(self, line_number: int) -> Sequence[Event]:
        if self.is_ready:
            return ()
        self.is_ready = True
        self.failures_now = self.late_failures
        self._ready_stamp = self.last_stamp
        events = self.phases.complete(self._clock(self.last_stamp), line_number)
        url = self._shown("server_url")
        return [*events, ServerReady(line_number, url if isinstance(url, str) else None)]

    def answer_offline(self, line_number: int) -> Sequence[Event]:
        """Prompts of a script were answered."""
        if not self.is_ready:
            self.is_offline = True
        return self._become_ready(line_number)

    def lose_readiness(self) -> None:
        """The address could not be taken after all: what failed since then ended the start."""
        self.is_ready = False
        self.failures = self.failures_now = self.late_failures
        self._ready_stamp = None
        self._has_address = False

    # -- reading -------------------------------------------------------------

    @staticmethod
    def _clock(stamp: str | None) -> float | None:
        return stamp_seconds(stamp) if stamp is not None else None

    def had_begun_before(self, usage: Candidate) -> bool:
        """Whether a start was seen before this error of a command line, which prints nothing."""
        return (
            bool(self.version_owners)
            or self.is_past_beginning
            or self.failures.num_besides(usage) > 0
        )

    @property
    def is_past_beginning(self) -> bool:
        """Whether more was seen than what a start prints first."""
        return self.was_ready or self.phases.current >= 2

    @property
    def has_gone_on(self) -> bool:
        """Whether what a start prints first would belong to another one."""
        return self.failures.has_failed or self.is_past_beginning

    @property
    def was_ready(self) -> bool:
        """Whether it answered; the address and the routes are enough when nothing follows."""
        return self.is_ready or self._ready_stamp is not None

    @property
    def ready_at(self) -> float | None:
        """The log's clock when the server was ready."""
        return self._clock(self._ready_stamp)

    @property
    def started_at(self) -> float | None:
        """The log's clock at the first stamped line."""
        if self._first_stamp is not None and "-" not in self._first_stamp and self.has_beginning:
            return 0.0  # llama-server's clock: the process started at zero
        return self._clock(self._first_stamp)

    def facts(self) -> Facts:
        self._take_untaken()
        for rule, match, process in self._newest.values():
            self._take_all(rule.takes, match, process, 0, None)
        values: dict[str, Any] = {key: self._shown(key) for key in self._values}
        return Facts(**values)

    def engine(self, num_source_headers: int) -> str | None:
        """Whose log this is, by the lines that only that engine prints."""
        if self.hits.get("stoker") or self.failures.names_own_error:
            return "stoker"
        if self.hits.get("sglang"):
            return "sglang"  # it imports vLLM, which then prints lines too
        if self.hits:
            return max(self.hits, key=lambda name: self.hits[name])
        return "vllm" if num_source_headers else None

    def outcome(self, *, is_server_log: bool, has_cause: bool) -> Outcome:
        if not is_server_log:
            return Outcome.NOT_A_SERVER_LOG
        if self.is_ready or (self.was_ready and not has_cause):
            return Outcome.READY
        if has_cause:
            return Outcome.FAILED
        if self.is_cut or not self.has_beginning:
            return Outcome.TRUNCATED
        return Outcome.RUNNING


def _safe(value: Value) -> Value:
    """As it may be shown; asked for what was kept in the end, since a long text takes its time."""
    return safe_text(value, _MAX_ARGUMENTS) if isinstance(value, str) else value


def _slot(keep: Keep, value: Value, process: str | None) -> Hashable:
    if keep is _EACH:
        return type(value), value
    if keep is _LAST_PER_PROCESS:
        return process or ""
    return ""
