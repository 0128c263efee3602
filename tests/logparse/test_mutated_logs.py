"""Logs that were cut, wrapped, joined or copied badly are read without an exception, and a server
that never answered is never called ready.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from logparse import Outcome, explain, parse_lines
from tests.logparse.mutations import before_it_answered, mutated_logs
from tests.logparse.shared_logs import LOGS, MORE_LOGS, expected_of, lines_of
from tests.logparse.whole_logs import LOGS as OWN_LOGS

# A thousand of each: python -m tests.benchmarks.bench_logparse --mutate 1000
PER_OWN_LOG = 60
PER_COLLECTED_LOG = 4


def collected() -> list[Path]:
    return [*sorted(LOGS.glob("*.log")), *sorted(MORE_LOGS.glob("*.log"))]


@pytest.mark.parametrize("name", OWN_LOGS)
def test_a_server_that_never_answered_is_not_ready(name: str) -> None:
    for what, lines in mutated_logs({name: OWN_LOGS[name]}, PER_OWN_LOG):
        report = parse_lines(lines)
        assert report.outcome is not Outcome.READY, what
        assert explain(report).text(), what


@pytest.mark.skipif(not LOGS.is_dir(), reason="the collected logs are not here")
def test_the_collected_logs_mutated() -> None:
    logs = {path.name: [line.rstrip("\n") for line in lines_of(path)] for path in collected()}
    for what, lines in mutated_logs(logs, PER_COLLECTED_LOG):
        assert parse_lines(lines).outcome is not Outcome.READY, what


@pytest.mark.skipif(not LOGS.is_dir(), reason="the collected logs are not here")
def test_what_never_answered_tells_nothing_of_it() -> None:
    """The mutations begin before readiness: of a log that has none, nothing is taken away."""
    never = [path for path in collected() if expected_of(path)["outcome"] == "running"]
    assert never
    for path in never:
        lines = lines_of(path)[:400]
        assert len(before_it_answered(lines)) == len(lines), path.name


def test_the_mutations_change_something() -> None:
    seen = [what.partition(": ")[2] for what, _ in mutated_logs(OWN_LOGS, 40)]
    assert len(set(seen)) > 100
