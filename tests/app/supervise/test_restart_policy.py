"""Which ends are followed by another start, and after how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.supervise.restart_policy import (
    LASTING_CAUSES,
    RestartCount,
    RestartPolicy,
    why_no_restart,
)
from logparse import parse_lines
from logparse.problems.table import LAST_RESORTS, PROBLEM_RULES

# Other programs, the network, the driver or the load are part of it.
PASSING_CAUSES = frozenset(
    {
        *("A3", "A4", "A9", "A12", "A13", "A15"),  # memory that others hold, or load
        *("B3", "B4"),  # the hub
        *("D5", "D6", "D8", "D9"),  # NCCL, Ray, the network
        *("E12", "E26"),  # a GPU computation failed, GPUs that are not ready
        "F7",  # too many open files
        # Crashes, time-outs, signals, ranks that differ.
        *("G1", "G2", "G3", "G4", "G5", "G6", "G10", "G11", "G12", "G14"),
        "G15",  # a node has ended, or cannot be reached
        "L8",  # a check inside llama.cpp, or a device call
        "L11",  # the hub
        "Q3",
    }
)
KNOWN = {rule.id for rule in (*PROBLEM_RULES, *LAST_RESORTS)}


def test_every_known_cause_is_in_one_table() -> None:
    assert LASTING_CAUSES | PASSING_CAUSES == KNOWN
    assert not LASTING_CAUSES & PASSING_CAUSES


@given(st.integers(1, 20), st.lists(st.floats(0, 599), max_size=40))
def test_delays_grow_to_the_longest_and_end_at_the_limit(limit: int, served: list[float]) -> None:
    policy = RestartPolicy(is_on=True, max_restarts=limit, longest_delay_s=30.0)
    count = RestartCount(policy)
    delays = [count.next_delay_s(seconds) for seconds in served]

    given_delays = [delay for delay in delays if delay is not None]
    assert delays == [*given_delays, *[None] * (len(served) - len(given_delays))]
    assert len(given_delays) == min(limit, len(served))
    assert given_delays == sorted(given_delays)
    assert given_delays == [min(2.0**n, 30.0) for n in range(len(given_delays))]


def test_a_long_service_begins_the_count_anew() -> None:
    count = RestartCount(RestartPolicy(is_on=True, max_restarts=2, steady_s=100.0))

    assert [count.next_delay_s(s) for s in (5.0, 5.0, 5.0)] == [1.0, 2.0, None]
    assert count.next_delay_s(100.0) == 1.0


@pytest.mark.parametrize(
    ("line", "is_lasting"),
    [
        ("OSError: [Errno 98] Address already in use", True),
        ("api_server.py: error: unrecognized arguments: --no-such-flag", True),
        ("RuntimeError: something that nobody knows", False),
    ],
)
def test_the_explained_cause_decides(line: str, is_lasting: bool) -> None:
    stamp = "(APIServer pid=7) INFO 11-29 20:00:00 [api_utils.py:346] vLLM server version 0.30.0"
    report = parse_lines([stamp, "Traceback (most recent call last):", line])
    assert report.problem is not None

    assert (why_no_restart(1, report.problem) is not None) == is_lasting


@pytest.mark.parametrize("code", [0, 2, 78, -2, -15])
def test_usage_errors_and_wanted_ends_are_not_repeated(code: int) -> None:
    assert why_no_restart(code, None) is not None


@pytest.mark.parametrize("code", [1, 3, -6, -9, -11, None])
def test_crashes_are(code: int | None) -> None:
    assert why_no_restart(code, None) is None
