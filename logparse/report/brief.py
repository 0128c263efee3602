"""A report in three lines: how it ended, what the server got, and the next thing to type."""

from __future__ import annotations

from logparse.problems.hangs import usual_hang
from logparse.records import LogReport, Outcome
from logparse.redact import shortened
from logparse.report.explain import explain, with_unit

_LINE = 160


def brief(report: LogReport) -> tuple[str, str, str]:
    """The outcome, what fits into the cache, and what to do: always three lines."""
    return explain(report).headline, _capacity(report), _next(report)


def _capacity(report: LogReport) -> str:
    facts = report.facts
    parts = [
        ("weights", with_unit(facts.weights_gib, "GiB")),
        ("KV memory", with_unit(facts.kv_memory_gib, "GiB")),
        ("KV tokens", with_unit(report.kv_tokens_total, "")),
        ("concurrency", with_unit(facts.max_concurrency, "x")),
        ("start", with_unit(report.first_to_ready_s, "s")),
    ]
    known = [f"{name} {value.strip()}" for name, value in parts if value is not None]
    return "; ".join(known) if known else f"{report.lines.total} lines, no capacity in them"


def _next(report: LogReport) -> str:
    if report.problem is not None:
        problem = report.problem
        fix = problem.fixes[0] if problem.fixes else None
        todo = f"; try: {fix.text}" if fix is not None else ""
        if fix is not None and fix.command is not None:
            todo += f": {fix.command}"
        shown = problem.key_line.partition(" [type=")[0]  # what pydantic appends explains nothing
        return f"line {problem.key_line_number}: {shortened(shown, _LINE)}{todo}"
    if report.outcome is Outcome.READY:
        if report.was_stopped:
            return f"served at {report.ready_url}" if report.ready_url else "stopped"
        return f"serving at {report.ready_url}" if report.ready_url else "ready, address not shown"
    if report.last_message:
        return f"last line: {shortened(report.last_message, _LINE)}{_takes_long(report)}"
    return "nothing to add"


def _takes_long(report: LogReport) -> str:
    """What a start that goes on is usually busy with where the log ends."""
    running = next((n for n, p in enumerate(report.phases, 1) if p.state == "running"), None)
    if report.outcome is not Outcome.RUNNING or running is None or report.was_stopped:
        return ""
    is_loaded = report.facts.weights_gib is not None
    return f"; usual here: {usual_hang(running, report.last_message, is_loaded=is_loaded)[0]}"
