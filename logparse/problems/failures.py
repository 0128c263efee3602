"""Collects lines that may be the cause of a failure, and chooses the first real one.

Owns the order of evidence: the first exception that is not a wrapper, raised deepest; not the last
traceback, which repeats it. Which rule explains a line is asked in `candidate`.
"""

from __future__ import annotations

import re
from collections import deque

from logparse.problems.candidate import (
    MAX_TEXT,
    Candidate,
    Cause,
    cause_of,
    first_known,
    first_quoted,
    last_resort,
)
from logparse.problems.problem import (
    announces_end,
    is_death,
    is_loud,
    is_plain_failure,
    is_server_program,
    is_tool_failure,
    is_wrapper,
    usage_program,
)
from logparse.problems.traceback import FRAME, Traceback, package_of, place_of
from logparse.reading.line import TRACEBACK

_EXCEPTION_NAME = re.compile(r"[A-Za-z_][\w.]{0,220}$")
_EXCEPTION_ENDS = ("Error", "Exception", "Exit", "Interrupt", "OutOfResources")
# In a traceback, any first line without indentation that starts with a (dotted) name.
_RAISED = re.compile(r"[A-Za-z_][\w.]{0,300}(?:: |:?$)")
# Our own engine's errors: they tell whose log it is when the start failed before its first line.
_OWN_ERROR = re.compile(
    r"(?:engine\.errors\.)?(?:ConfigError|MemoryBudgetError|ModelError|ModelNotFoundError|"
    r"GatedModelError"
    r"|OfflineError|CorruptModelError): "
)
_USAGE_BLOCK = "usage: "
_BARE_ERROR = "Error: "  # of a program that calls its end so, and of no class of Python
_TOOL_CALL = re.compile(
    r"\bPTXAS ?[Ee]rror\b|\bCalledProcessError\b|Error building extension|Ninja build failed"
)
_VALUE_ERROR = "Value error, "
_VALIDATED = " [type="  # behind what pydantic says of one field
_FIELD = re.compile(r"[\w.\[\]-]{1,200}")
_GLOO, _NOT_CONNECTED = "[Gloo] Rank ", " is NOT connected"
_INDENTED_CAUSES = (_VALUE_ERROR, "what(): ", FRAME)
_RANK = re.compile(r"\[rank\d{1,5}\]: ?")  # torch puts it before each line of a traceback
# What only one of them says, also without a frame of its code.
_WORDS = (
    (
        re.compile(
            r"Engine core init|Engine process failed to start|validation errors? for (?:Model|Vllm|"
            r"Parallel|Scheduler|Cache|LoRA|Speculative|Compilation|Device|Load|MultiModal)Config"
        ),
        "vllm",
    ),
    (
        re.compile(
            r"Received sigquit from a child proces|Scheduler hit an exc|Rank \d+ scheduler is dead"
        ),
        "sglang",
    ),
)

Owner = tuple[str | None, str | None]  # process and pid; two of one name are kept apart
_Writer = tuple[Owner, str | None]  # and the level
_LONGEST_BARE = len(TRACEBACK) + 3  # with its colon; a longer one says more
_MAX_NAME = 223
_MAX_CANDIDATES = 60
_MAX_ERROR_LINES = 300
_MAX_CONTINUATIONS = 8
_LONGEST_SILENCE = 100  # lines of others behind a traceback that breaks off


class FailureTracker:
    """The failing lines of one start, or of the time after it (`is_serving`)."""

    def __init__(self, *, is_serving: bool = False) -> None:
        # Who serves is inside of a step, also where the log has no traceback to show it.
        self._around: tuple[str, ...] = ("execute_model",) if is_serving else ()
        self._strong: list[Candidate] = []
        self._errors: list[Candidate] = []
        self._announced: list[Candidate] = []
        self._usages: deque[str] = deque(maxlen=4)  # programs that printed how to call them
        self._open: dict[_Writer, Traceback] = {}
        self._continued: dict[_Writer, Candidate] = {}
        self._ignore_next = False
        self._package: str | None = None

    @property
    def engine(self) -> str | None:
        """Whose code the tracebacks pass through, or whose words a wrapper has."""
        seen = (*self._strong, *self._announced)
        for candidate in seen if self._package is None else ():
            for words, name in _WORDS:
                if words.search(candidate.text[:2000]):
                    return name
        return self._package

    @property
    def has_failed(self) -> bool:
        """Whether something was seen that ends a start."""
        return bool(self._strong or self._announced)

    def num_besides(self, candidate: Candidate) -> int:
        """How many others may have ended the start."""
        return sum(c is not candidate for c in self._strong)

    @property
    def has_room(self) -> bool:
        """Whether another failing line would be kept."""
        return (
            max(len(self._strong), len(self._announced)) < _MAX_CANDIDATES
            and len(self._errors) < _MAX_ERROR_LINES
        )

    @property
    def has_death(self) -> bool:
        """Whether the shell or the kernel said that a process is gone, other than by a stop."""
        return any(c.kind == "death" and not c.text.startswith("Terminated") for c in self._strong)

    @property
    def has_ended(self) -> bool:
        """Whether the failing start has certainly ended (last wrapper, or a usage error)."""
        return any(c.kind == "usage" or c.points_elsewhere for c in self._strong)

    @property
    def names_own_error(self) -> bool:
        """Whether one of our own engine's errors was raised."""
        return any(_OWN_ERROR.match(c.text) for c in self._strong)

    def observe(
        self, line_number: int, owner: Owner, level: str | None, message: str
    ) -> Candidate | None:
        """Take an ERROR line or a line without a level; the new candidate, if it is one."""
        if level is None and message.startswith("Exception ignored in"):
            self._ignore_next = True
            return None
        key = (owner, level)
        if message.startswith("[rank"):
            message = _RANK.sub("", message, count=1)
        if "Traceback" in message and TRACEBACK in message[:200]:
            if len(self._open) >= _MAX_CANDIDATES:
                self._open.clear()
            self._open[key] = Traceback(
                line_number, message[:MAX_TEXT], is_ignored=self._ignore_next
            )
            self._ignore_next = False
            self._continued.pop(key, None)
            is_bare = message.startswith(TRACEBACK) and len(message) < _LONGEST_BARE
            if not is_bare and announces_end(message, level):
                return self._add(line_number, key, message, "announcement", None)
            return None
        text = message.lstrip()
        opened = self._open.get(key)
        if opened is None and text.startswith(FRAME):
            # The log, or what was copied of it, begins within a traceback.
            opened = self._open[key] = Traceback(line_number, text[:MAX_TEXT])
        if opened is not None:
            if (
                text is not message
                or not text
                or text.startswith((FRAME, "^^", "~~"))
                or (opened.expects_source and not _is_exception(text))
            ):
                self._note_frame(opened, text)
                return None
            del self._open[key]
            if opened.is_ignored:
                return None
        return self._classify(line_number, key, text, opened, is_indented=text is not message)

    def announce(self, line_number: int, owner: Owner, message: str) -> None:
        """Take a line without a level that a rule knows as the end of a server."""
        if not self._announced or self._announced[-1].line_number != line_number:
            self._add(line_number, (owner, None), message, "announcement", None)

    def is_frame(self, owner: Owner, message: str) -> bool:
        """Take an indented line without a level if it belongs to an open traceback."""
        opened = self._open.get((owner, None))
        if opened is None:
            return False
        self._note_frame(opened, message.lstrip())
        return True

    def _note_frame(self, opened: Traceback, text: str) -> None:
        opened.note(text)
        if self._package is None and text.startswith(FRAME):
            self._package = package_of(text)

    def is_nothing(self, message: str) -> bool:
        """Whether an indented line without a level, in no traceback, would tell `observe` nothing.
        A cheap test, for most of them.
        """
        return (
            not self._continued
            and ": error: " not in message
            and "Traceback" not in message
            and not message.lstrip().startswith(_INDENTED_CAUSES)
            and _VALIDATED not in message
        )

    def _classify(
        self,
        line_number: int,
        key: _Writer,
        text: str,
        opened: Traceback | None,
        *,
        is_indented: bool,
    ) -> Candidate | None:
        level = key[1]
        if is_indented and level is None and not self._continued and _is_harmless(text):
            return None
        kind = _kind(text, level, is_raised=opened is not None)
        if level is None and kind is None:
            if text.startswith(_USAGE_BLOCK):
                self._usages.append(text[len(_USAGE_BLOCK) : _MAX_NAME])
            elif ": error: " in text[:160] and self._is_refused_by_server(text):
                kind = "usage"
        if kind is None or (kind == "error" and self._is_open_ended(key)):
            self._continue(key, text)
            return None
        if is_indented and kind == "error":
            self._continue(key, text)  # the middle of a traceback, or of a message
            return None
        if is_indented and kind == "exception" and not _is_of_a_field(text):
            return None
        wrapper = self._continued.get(key)
        candidate = self._add(line_number, key, text, kind, opened)
        if candidate is not None and wrapper is not None and wrapper.more and _is_of_a_field(text):
            candidate.field = wrapper.more[-1] if _FIELD.fullmatch(wrapper.more[-1]) else None
        return candidate

    def _is_refused_by_server(self, text: str) -> bool:
        """Whether a server's program refuses its command line, not one that ran beside it."""
        program = usage_program(text)
        return program is not None and (
            is_server_program(program) or any(one.startswith(program) for one in self._usages)
        )

    def _add(
        self,
        line_number: int,
        key: _Writer,
        text: str,
        kind: str,
        opened: Traceback | None,
    ) -> Candidate | None:
        process, pid = key[0]
        functions = tuple(opened.functions) if opened is not None else ()
        place = place_of(opened.place) if opened is not None and opened.place is not None else None
        functions += self._around
        candidate = Candidate(line_number, process, pid, text[:MAX_TEXT], kind, functions, place)
        if opened is not None:
            candidate.source = opened.source
            candidate.own_place = place_of(opened.own_place) if opened.own_place else None
        candidate.points_elsewhere = kind == "announcement" or is_wrapper(candidate.text)
        kept, limit = self._strong, _MAX_CANDIDATES
        if kind in ("error", "tool"):
            kept, limit = self._errors, _MAX_ERROR_LINES
        elif kind == "announcement":
            kept = self._announced
        if len(kept) >= limit:
            return None
        kept.append(candidate)
        if len(self._continued) >= _MAX_CANDIDATES:
            self._continued.clear()
        self._continued[key] = candidate
        return candidate

    def _is_open_ended(self, key: _Writer) -> bool:
        """Whether the message before says only which exception; its text is on the next lines."""
        candidate = self._continued.get(key)
        return (
            candidate is not None
            and candidate.kind == "exception"
            and candidate.text.rstrip().endswith(":")
        )

    def _continue(self, key: _Writer, text: str) -> None:
        candidate = self._continued.get(key)
        if candidate is None or not text:
            return
        candidate.more.append(text[:MAX_TEXT])
        if len(candidate.more) >= _MAX_CONTINUATIONS:
            del self._continued[key]

    def survived(self, process: str | None, pid: str | None = None) -> None:
        """The start went on in this process: what it raised before was caught and did no harm.
        Without a pid, in all processes of this name.
        """
        if self._strong or self._errors or self._announced:
            self._strong = [c for c in self._strong if not _is_by(c, process, pid)]
            self._errors = [c for c in self._errors if not _is_by(c, process, pid)]
            # What a launcher says, without a name, is of another program if the server goes on.
            self._announced = [
                c for c in self._announced if c.process is not None and not _is_by(c, process, pid)
            ]
            self._continued.clear()
        if self._open:
            for key in [k for k in self._open if k[0][0] == process and pid in (None, k[0][1])]:
                del self._open[key]

    def forget(self, candidate: Candidate) -> None:
        """It was of another program."""
        self._strong = [c for c in self._strong if c is not candidate]

    def cause(self, *, trusts_error_lines: bool, num_lines: int = 0) -> Cause | None:
        """The first cause. With `trusts_error_lines`, an ERROR line alone is a failure too.
        `num_lines` of the log were read: a traceback that breaks off long before did no harm.
        """
        strong = _without_late_deaths([c for c in self._strong if not c.points_elsewhere])
        if any(c.kind == "exception" and not c.text.startswith(_BARE_ERROR) for c in strong):
            # What a launcher says of the end, where the exception itself is there.
            strong = [c for c in strong if not c.text.startswith(_BARE_ERROR)]
        known = first_known(strong)
        if strong and (known is None or known.candidate.process != strong[0].process):
            first = cause_of(strong[0]) or Cause(strong[0], None, {}, strong[0])
            known = (
                known if known is not None and first.rule is None and _is_death(first) else first
            )
        if known is not None and _is_of_a_tool(known):
            known = self._from_tools() or known
        if known is not None and _is_death(known):
            # What it said before it ended.
            known = self._from_errors(trusts_error_lines=False) or known
        if known is None:
            known = (
                self._from_tools()
                or first_known(self._strong)
                or self._from_errors(trusts_error_lines or bool(self._strong))
            )
        if known is None and (ends := self._without_reason(num_lines)):
            known = (
                first_known(ends)
                or self._from_known_errors()
                or first_quoted(ends)
                or last_resort(ends)
            )
        return self._with_first_line(known) if known is not None else None

    def _without_reason(self, num_lines: int) -> list[Candidate]:
        """Lines that tell of the end and not why, in order; a traceback that breaks off is one."""
        found = [*self._strong, *self._announced]
        for ((process, pid), _), opened in self._open.items() if not found else ():
            if not opened.is_ignored and num_lines - opened.last_line <= _LONGEST_SILENCE:
                found.append(
                    Candidate(
                        opened.line_number, process, pid, opened.header, "announcement",
                        tuple(opened.functions),
                        place_of(opened.place) if opened.place is not None else None,
                        points_elsewhere=True,
                    )
                )  # fmt: skip
        return sorted(found, key=lambda candidate: candidate.line_number)

    def _from_tools(self) -> Cause | None:
        """What a compiler or linker said before something failed."""
        tools = [c for c in self._errors if c.kind == "tool"] if self.has_failed else []
        first = first_known(tools)
        return first or (Cause(tools[0], None, {}, tools[0]) if tools else None)

    def _from_known_errors(self) -> Cause | None:
        return first_known([c for c in self._errors if not c.points_elsewhere])

    def _from_errors(self, trusts_error_lines: bool) -> Cause | None:
        errors = [c for c in self._errors if not c.points_elsewhere and c.kind != "tool"]
        known = first_known(
            [c for c in errors if (m := cause_of(c)) and m.rule and m.rule.is_fatal]
        )
        if known is not None and known.rule is not None and known.rule.is_echo:
            return cause_of(errors[0]) or Cause(errors[0], None, {}, errors[0])
        if known is None and trusts_error_lines and errors:
            return first_known(errors) or Cause(errors[0], None, {}, errors[0])
        return known

    def _with_first_line(self, cause: Cause) -> Cause:
        """The same cause, shown by the first line that names it, with the values of all that do."""
        if cause.rule is None:
            return cause
        values = dict(cause.values)
        first = cause.key_line
        for candidate in (*self._errors, *self._strong):
            found = cause.rule.match(candidate.whole)
            if found is None or candidate is cause.candidate:
                continue
            values = {**found, **values}
            if candidate.kind == "error" and candidate.line_number < first.line_number:
                first = candidate
        return Cause(cause.candidate, cause.rule, values, first)


def _is_by(candidate: Candidate, process: str | None, pid: str | None) -> bool:
    same_pid = pid is None or candidate.pid is None or candidate.pid == pid
    return same_pid and candidate.process == process


def _is_harmless(text: str) -> bool:
    """Of an indented line outside of a traceback; most are none of these, and the test is cheap."""
    return (
        not text.startswith(_INDENTED_CAUSES)
        and ": error: " not in text[:160]
        and _VALIDATED not in text
    )


def _is_of_a_field(text: str) -> bool:
    """Whether pydantic says here what is wrong with one value."""
    return text.startswith(_VALUE_ERROR) or (_VALIDATED in text and ", input_value=" in text)


def _is_exception(text: str) -> bool:
    """Whether the line begins with the name of an exception."""
    name = text[:_MAX_NAME].partition(": ")[0].removesuffix(":")
    return _RAISED.match(text) is not None or (
        name.endswith(_EXCEPTION_ENDS) and _EXCEPTION_NAME.match(name) is not None
    )


def _kind(text: str, level: str | None, *, is_raised: bool) -> str | None:
    if level is None and is_death(text):
        return "death"
    name = text[:_MAX_NAME].partition(": ")[0].removesuffix(":")
    if name.endswith(_EXCEPTION_ENDS) and _EXCEPTION_NAME.match(name):
        return "exception"
    if _is_of_a_field(text) or (is_raised and _RAISED.match(text)):
        return "exception"
    if level is None:
        if not is_loud(text):
            return None
        if is_plain_failure(text):
            return "plain"
        if is_tool_failure(text):
            return "tool"
        if text.startswith(_GLOO) and _NOT_CONNECTED in text[:100]:
            return "error"
    if announces_end(text, level):
        return "announcement"
    return "error" if level is not None else None


def _without_late_deaths(candidates: list[Candidate]) -> list[Candidate]:
    """A process that raised something ends, and the shell says how: that is not the cause."""
    first = next((i for i, c in enumerate(candidates) if c.kind == "exception"), len(candidates))
    return candidates[:first] + [c for c in candidates[first:] if c.kind != "death"]


def _is_death(cause: Cause) -> bool:
    return cause.candidate.kind == "death"


def _is_of_a_tool(cause: Cause) -> bool:
    """Whether a compiler or another program that was called failed, and said why itself."""
    return _TOOL_CALL.search(cause.candidate.text) is not None
