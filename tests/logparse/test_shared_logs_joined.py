"""The collected logs again, read in place: two starts in one file, and starts that break off."""

from __future__ import annotations

import functools
import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from logparse import parse_lines, to_document
from logparse.reading.source import decoded_lines
from tests.logparse.shared_logs import LOGS

VALUES = (
    "engine", "engine_version", "model", "weights_gib", "kv_memory_gib", "kv_tokens", "kv_blocks",
    "max_concurrency", "max_model_len", "requested_max_model_len", "compile_s", "graph_gib",
    "engine_init_s",
)  # fmt: skip
OF_THE_LAST = (*VALUES, "outcome", "ready_url", "processes", "cause_id", "key_line")
CUTS = 20

pytestmark = pytest.mark.skipif(not LOGS.is_dir(), reason="the collected logs are not here")


@functools.cache
def lines_of(path: Path) -> tuple[str, ...]:
    with path.open("rb") as stream:
        return tuple(line.rstrip("\n") + "\n" for line in decoded_lines(stream))


@functools.cache
def alone(path: Path) -> dict[str, Any]:
    return to_document(parse_lines(lines_of(path)))


def paths() -> list[Path]:
    return sorted(LOGS.glob("*.log"))


def shows_its_beginning(path: Path) -> bool:
    """Whether a reader could tell that another start begins."""
    found = alone(path)
    has_name = found["model"] is not None or found["cause_id"] == "F2"
    return has_name and found["outcome"] in ("ready", "failed", "running")


def test_the_last_of_two_starts_counts(capsys: pytest.CaptureFixture[str]) -> None:
    numbered = list(enumerate(paths()))
    pairs = [
        (first, second)
        for (i, first), (j, second) in itertools.permutations(numbered, 2)
        if (i + j) % 3 == 0 and shows_its_beginning(second)
    ]
    misread = {}
    for first, second in pairs:
        found = to_document(parse_lines(lines_of(first) + lines_of(second)))
        wrong = [key for key in OF_THE_LAST if found[key] != alone(second)[key]]
        if wrong:
            misread[f"{first.name} + {second.name}"] = wrong
    with capsys.disabled():
        print(f"\n  {len(pairs) - len(misread)} of {len(pairs)} joined pairs read right")
    assert len(pairs) > 200
    assert misread == {}


@pytest.mark.parametrize("path", paths(), ids=lambda path: path.stem)
def test_a_log_that_breaks_off(path: Path) -> None:
    lines, whole = lines_of(path), alone(path)
    chance = random.Random(path.name)
    is_single = not whole["attempts"]
    for _ in range(CUTS):
        found = to_document(parse_lines(lines[: chance.randrange(1, len(lines))]))
        if not is_single:
            continue  # the values are those of an earlier start
        for key in VALUES:
            assert found[key] is None or _is_part_of(found[key], whole[key]), key
        if found["outcome"] != whole["outcome"]:
            assert found["outcome"] in ("running", "truncated", "not-a-server-log")
        # G1: the failure was announced, and its reason is behind the cut.
        assert found["cause_id"] in (None, whole["cause_id"], "G1")


def _is_part_of(value: Any, whole: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return all(one in whole if isinstance(whole, list) else one == whole for one in values)
