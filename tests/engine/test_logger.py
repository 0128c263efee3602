from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator

import pytest

from engine.logger import ProgressBar, get_logger, setup_logging

# The lesson's own expression for one line of a vLLM log.
SEED_LINE = re.compile(
    r"^\((\w+) pid=(\d+)\) (?:(INFO|WARNING|ERROR) \S+ \S+ \[([\w.]+):(\d+)\] )?(.*)$"
)


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    target = io.StringIO()
    setup_logging("EngineCore", secrets=("top-secret",), stream=target)
    yield target
    setup_logging("EngineCore")


def test_every_physical_line_matches_the_lessons_expression(stream: io.StringIO) -> None:
    logger = get_logger("engine.core.engine_core")
    logger.info("first\nsecond")
    try:
        raise ValueError("inner")
    except ValueError:
        logger.exception("failed")
    lines = stream.getvalue().splitlines()
    matches = [SEED_LINE.match(line) for line in lines]
    assert all(match and match[3] for match in matches)
    assert {match[1] for match in matches if match} == {"EngineCore"}
    assert {match[2] for match in matches if match} == {str(os.getpid())}
    assert matches[0]
    assert matches[0][4] == "test_logger.py"
    assert matches[0][6] == "first"
    assert lines[-1].endswith("ValueError: inner")


def test_secrets_never_reach_the_log(stream: io.StringIO) -> None:
    get_logger("x").info("key %s token %s", "top-secret", "hf_abcdefghijkl")
    assert "top-secret" not in stream.getvalue()
    assert "hf_abc" not in stream.getvalue()
    assert stream.getvalue().count("***") == 2


def test_the_progress_bar_has_a_prefix_but_no_level(capsys: pytest.CaptureFixture[str]) -> None:
    bar = ProgressBar("EngineCore", "Loading safetensors checkpoint shards", 2)
    bar.update(2)
    lines = capsys.readouterr().out.splitlines()
    match = SEED_LINE.match(lines[-1])
    assert match
    assert match[3] is None
    assert "100% Completed | 2/2 [" in match[6]
