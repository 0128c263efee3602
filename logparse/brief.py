"""A report in three lines: how it ended, what the server got, and the next thing to type."""

from __future__ import annotations

from logparse.explain import explain, with_unit
from logparse.records import LogReport, Outcome


def brief(report: LogReport) -> tuple[str, str, str]:
    """Always three lines."""
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
        todo = f"; try: {fix.command or fix.text}" if fix is not None else ""
        return f"line {problem.key_line_number}: {problem.key_line[:160]}{todo}"
    if report.outcome is Outcome.READY:
        return f"serving at {report.ready_url}" if report.ready_url else "ready, address not shown"
    if report.last_message:
        return f"last line: {report.last_message[:160]}"
    return "nothing to add"
