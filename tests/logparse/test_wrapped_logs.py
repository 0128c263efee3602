"""A log reads alike whatever wrapped it: each of many wrappings, around logs of every kind."""

from __future__ import annotations

from typing import Any

import pytest

from logparse import parse_lines, to_document
from tests.logparse.whole_logs import LOGS
from tests.logparse.wrappings import MOVES_LINES, WRAPPINGS

KEYS = (
    "outcome", "engine", "engine_version", "model", "arguments", "weights_gib", "kv_memory_gib",
    "kv_tokens", "max_concurrency", "max_model_len", "compile_s", "graph_gib", "engine_init_s",
    "ready_url", "cause_id", "root_cause", "key_line",
)  # fmt: skip


def values(lines: list[str], *, has_numbers: bool) -> dict[str, Any]:
    document = to_document(parse_lines(lines))
    keys = (*KEYS, "key_line_no") if has_numbers else KEYS
    return {key: document[key] for key in keys}


def test_the_logs_are_read_right_as_they_are() -> None:
    outcomes = {name: to_document(parse_lines(lines))["outcome"] for name, lines in LOGS.items()}
    assert outcomes == {
        "ready": "ready",
        "failed": "failed",
        "bare traceback": "failed",
        "usage": "failed",
        "bars": "truncated",
        "own": "ready",
        "sglang": "ready",
        "sglang failed": "failed",
        "llama": "ready",
        "llama failed": "failed",
    }


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_a_wrapped_log_reads_alike(wrapping: str) -> None:
    has_numbers = wrapping not in MOVES_LINES
    for name, lines in LOGS.items():
        wrapped = values(WRAPPINGS[wrapping](lines), has_numbers=has_numbers)
        assert wrapped == values(lines, has_numbers=has_numbers), name


def test_there_are_enough_of_them() -> None:
    assert len(WRAPPINGS) >= 100
