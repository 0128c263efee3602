"""A report in words: what the server got, how long each part of the start took, and why it
failed.

Owns wording and number formats (as the engine prints them, so that grep finds them); decides
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from logparse.problems.hangs import usual_hang
from logparse.problems.problem import MORE_TIME, WHO_STOPS
from logparse.problems.text import filled_fixes
from logparse.records import Fix, LogReport, Measured, Outcome, Phase, Problem
from logparse.redact import printable, shortened
from logparse.report.details import (
    lever_lines,
    serving_lines,
    setup_lines,
    time_lines,
    warning_lines,
)

_LABEL_WIDTH = 15

# How a process ended when it could not say so itself; negative numbers are signals.
_EXIT_CODES = {
    9: (
        "it was killed (SIGKILL), most likely because main memory ran out",
        "dmesg | grep -i 'out of memory'",
    ),
    7: ("it hit the end of the shared memory (SIGBUS)", "df -h /dev/shm"),
    11: ("compiled code crashed (SIGSEGV)", "dmesg | tail -50"),
    6: ("compiled code gave up (SIGABRT)", "dmesg | tail -50"),
    4: ("the processor lacks an instruction that this build uses (SIGILL)", "stoker doctor"),
    15: ("it was asked to stop from outside (SIGTERM)", None),
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """Blocks of text; `text()` joins them, the verdict and its cause first."""

    headline: str
    capacity: tuple[str, ...]
    phases: tuple[str, ...]
    cause: tuple[str, ...]
    notes: tuple[str, ...]
    details: tuple[tuple[str, ...], ...] = ()  # blocks: time, levers, warnings, serving, set-up

    def __post_init__(self) -> None:
        """Whatever a log made of these, they can be printed."""
        object.__setattr__(self, "headline", printable(self.headline))
        for name in ("capacity", "phases", "cause", "notes"):
            object.__setattr__(self, name, _printable_block(getattr(self, name)))
        object.__setattr__(self, "details", tuple(map(_printable_block, self.details)))

    def text(self) -> str:
        """The whole explanation, ending in a newline."""
        cause = (self.headline, *self.cause)
        blocks = [cause, self.capacity, self.phases, *self.details, self.notes]
        return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _printable_block(lines: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(printable, lines))


def explain(report: LogReport, *, exit_code: int | None = None) -> Explanation:
    """What the log says. `exit_code` of the server's process helps when it died without a word."""
    if report.outcome is Outcome.NOT_A_SERVER_LOG:
        notes: tuple[str, ...] = ("No line of a server's start was recognised.",)
        return Explanation("This is not a server log.", (_count_line(report),), (), (), notes)
    return Explanation(
        headline=_headline(report),
        capacity=(_count_line(report), *_capacity(report)),
        phases=_phase_lines(report.phases),
        cause=_cause_lines(report, exit_code),
        notes=_notes(report),
        details=(
            time_lines(report),
            lever_lines(report),
            warning_lines(report),
            serving_lines(report),
            setup_lines(report),
        ),
    )


def _headline(report: LogReport) -> str:
    name = _engine_name(report)
    if report.outcome is Outcome.READY:
        if report.problem is not None:
            return f"{name} was ready, then died: {report.problem.title}"
        if report.is_offline:
            return f"{name} was ready and answered the prompts of its script (no server)"
        return (
            f"{name} was ready and was stopped later" if report.was_stopped else f"{name} is ready"
        )
    if report.outcome is Outcome.FAILED:
        title = report.problem.title if report.problem is not None else "no cause in this log"
        return f"{name} failed to start: {title}"
    if report.outcome is Outcome.TRUNCATED:
        return f"{name}: the beginning is missing or parts were cut, so neither ready nor failed"
    if report.was_stopped:
        return f"{name} was stopped before it was ready"
    phase = next((phase.name for phase in report.phases if phase.state == "running"), None)
    return f"{name} was still starting when the log ends" + (f", in: {phase}" if phase else "")


def _engine_name(report: LogReport) -> str:
    version = report.facts.engine_version
    name = report.engine or "the server"
    model = report.facts.model
    return f"{name}{f' {version}' if version else ''}{f' with {model}' if model else ''}"


def _count_line(report: LogReport) -> str:
    lines = report.lines
    parts = [f"{process.num_lines} {process.name}" for process in report.processes]
    if lines.without_level:
        if lines.without_level == lines.progress_bars:
            bars = " (progress bars)"
        else:
            bars = f" ({lines.progress_bars} of them progress bars)" if lines.progress_bars else ""
        parts.append(f"{lines.without_level} without a level{bars}")
    head = f"{lines.total} line{'' if lines.total == 1 else 's'}"
    return f"{head}: {', '.join(parts)}" if parts else head


def _capacity(report: LogReport) -> tuple[str, ...]:
    facts = report.facts
    rows: list[tuple[str, str | None]] = [
        ("weights", with_unit(facts.weights_gib, "GiB")),
        ("KV memory", with_unit(facts.kv_memory_gib, "GiB")),
        ("KV tokens", _tokens(report)),
        ("concurrency", _concurrency(report)),
        ("slots", _slots(report)),
        ("compile", with_unit(facts.compile_s, "s")),
        ("engine init", with_unit(facts.engine_init_s, "s")),
        ("ready at", report.ready_url),
        ("first to ready", _whole_seconds(report.first_to_ready_s)),
    ]
    lines = []
    graphs = with_unit(facts.graph_gib, "GiB")
    for label, value in rows:
        if label == "compile" and graphs is not None:
            label, value = ("compile", f"{value}, graphs {graphs}") if value else ("graphs", graphs)
        if value is not None:
            lines.append(f"{label:<{_LABEL_WIDTH}}{value}")
    return tuple(lines)


def _tokens(report: LogReport) -> str | None:
    facts, total = report.facts, report.kv_tokens_total
    if total is None:
        return None
    if isinstance(facts.kv_tokens, tuple):
        return f"{total} (per rank: {', '.join(str(value) for value in facts.kv_tokens)})"
    size = report.block_size
    if size is not None and total % size == 0:
        return f"{total} = {total // size} blocks of {size}"
    return str(total)


def _concurrency(report: LogReport) -> str | None:
    value = _measured(report.facts.max_concurrency)
    if value is None:
        return None
    length = report.facts.max_model_len
    return f"{value}x at max length {length}" if length is not None else f"{value}x"


def _slots(report: LogReport) -> str | None:
    number, tokens = report.facts.num_slots, report.facts.slot_tokens
    if number is None:
        return None
    return f"{number}, each for up to {tokens} tokens" if tokens is not None else str(number)


def with_unit(value: Measured | None, unit: str) -> str | None:
    """`14.96 GiB`; all of them when ranks differ; None when absent."""
    text = _measured(value)
    return None if text is None else f"{text} {unit}"


def _measured(value: Measured | None) -> str | None:
    if value is None:
        return None
    if isinstance(value, tuple):
        return " / ".join(_number(part) for part in value)
    return _number(value)


def _number(value: int | float) -> str:
    if isinstance(value, int):
        return str(value)
    return f"{value:.2f}" if round(value, 2) == value else f"{value:.4f}".rstrip("0")


def _whole_seconds(value: float | None) -> str | None:
    if value is None:
        return None
    if value == 0:
        return "under 1 s"  # the log's clock counts whole seconds
    return f"{value:.0f} s" if value >= 10 or value == int(value) else f"{value:.1f} s"


def _phase_lines(phases: tuple[Phase, ...]) -> tuple[str, ...]:
    if all(phase.state == "absent" for phase in phases):
        return ()
    width = max(len(phase.name) for phase in phases)
    return (
        "phases",
        *(f"  {i} {phase.name:<{width}}  {phase_time(phase)}" for i, phase in enumerate(phases, 1)),
    )


def phase_time(phase: Phase) -> str:
    """`22 s`, or why there is no time."""
    if phase.state == "absent":
        return "absent (no line of it in this log)"
    time = _whole_seconds(phase.seconds)
    if phase.state == "done":
        return time if time is not None else "done (lines without a time)"
    return f"{phase.state}, not finished"


def _cause_lines(report: LogReport, exit_code: int | None) -> tuple[str, ...]:
    if report.problem is not None:
        return problem_lines(report.problem)
    if exit_code and report.outcome is not Outcome.FAILED:
        return _exit_lines(exit_code)
    if report.outcome is Outcome.RUNNING and report.was_stopped:
        last = [f"  last line  {report.last_message}"] if report.last_message else []
        return (*last, f"  why: {WHO_STOPS}", f"  {MORE_TIME[0]}:  {MORE_TIME[1]}")
    if report.outcome is Outcome.RUNNING:
        number = next((i for i, p in enumerate(report.phases) if p.state == "running"), None)
        lines = [f"  last line  {report.last_message}"] if report.last_message else []
        if number is not None:
            text, lever = usual_hang(
                number + 1, report.last_message, is_loaded=report.facts.weights_gib is not None
            )
            lines.append(f"  what usually takes long here: {text}")
            templates = ((text, lever),) if lever is not None else ()
            fixes = filled_fixes(templates, report.facts, report.engine)
            lines += [f"  try        {fix.command}" for fix in fixes]
        return tuple(lines)
    return ()


def _exit_lines(exit_code: int) -> tuple[str, ...]:
    signal = -exit_code if exit_code < 0 else exit_code - 128
    meaning, command = _EXIT_CODES.get(signal, ("it ended without saying why", None))
    return (
        f"  the process ended with exit code {exit_code}: {meaning}",
        *((f"  try        {command}",) if command else ()),
    )


def problem_lines(problem: Problem) -> tuple[str, ...]:
    """The line that shows a cause, why, and what to do."""
    where = f"line {problem.key_line_number}" + (f" ({problem.process})" if problem.process else "")
    lines = [f"  {where}:", f"    {problem.key_line}", f"  why: {problem.why}"]
    if problem.fixes:
        lines.append("  try, in this order:")
        lines += [f"    {i}. {_fix(fix)}" for i, fix in enumerate(problem.fixes, 1)]
    return tuple(lines)


def _fix(fix: Fix) -> str:
    return fix.text if fix.command is None else f"{fix.text}:  {fix.command}"


def _notes(report: LogReport) -> tuple[str, ...]:
    notes = []
    if report.attempts:
        number = len(report.attempts)
        first = report.attempts[-1].first_line
        earlier = ", ".join(
            f"{i} {attempt.outcome.value}"
            + (f" ({shortened(attempt.key_line, 100)})" if attempt.key_line else "")
            for i, attempt in enumerate(report.attempts[:-1], 1)
        )
        notes.append(
            f"{number} starts in this log; all of the above is the last one, from line {first}."
        )
        notes.append(f"before it: {earlier}")
    return tuple(notes)
