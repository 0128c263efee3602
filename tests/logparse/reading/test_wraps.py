"""Lines that a terminal cut are read as if it had not; logs that were not cut stay as they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logparse import parse_lines, to_document
from logparse.reading.restore import restored_lines
from logparse.reading.source import decoded_lines
from logparse.reading.wraps import WRAP, wrap_width
from logparse.redact import strip_ansi
from logparse.report.line_meaning import ErrorLines
from tests.logparse.shared_logs import LOGS
from tests.logparse.wrappings import KEYS
from tests.places import DATA

HEADED = "(APIServer pid=7) INFO 10-03 12:00:01 [api_server.py:1] "
LOG = [
    HEADED + "vLLM API server version 0.30.0",
    HEADED + "non-default args: {'model_tag': 'org/model-of-some-size', 'port': 8100, "
    "'max_model_len': 4096, 'served_model_name': ['one', 'two', 'three']}",
    HEADED + "Resolved architecture: Qwen3ForCausalLM, which is a text generation model of its own",
    HEADED + "Using max model len 4096",
    "(APIServer pid=7) Traceback (most recent call last):",
    '(APIServer pid=7)   File "/usr/lib/python3/dist-packages/vllm/entrypoints/api_server_one.py"'
    ", line 3, in setup_server",
    "(APIServer pid=7)     sock.bind(addr)",
    "(APIServer pid=7) OSError: [Errno 98] Address already in use",
]  # fmt: skip


def as_shown(lines: Iterator[str]) -> list[str]:
    """What a terminal leaves on its screen."""
    texts = (strip_ansi(line.rstrip("\r\n")).replace("\t", "    ") for line in lines)
    return [text.rpartition("\r")[2] for text in texts]


def wrapped(lines: list[str], width: int) -> list[str]:
    return [line[at : at + width] for line in lines for at in range(0, len(line) or 1, width)]


def values(lines: list[str]) -> dict[str, Any]:
    document = to_document(parse_lines(lines))
    return {key: document[key] for key in KEYS}


@pytest.mark.parametrize("width", [80, 90, 100])
def test_a_wrapped_failure(width: int) -> None:
    cut = wrapped(LOG, width)
    assert len(cut) > len(LOG)
    assert wrap_width(cut) == width
    assert [line.replace(WRAP, "") for line in restored_lines(cut)] == LOG
    assert values(cut) == values(LOG)


def test_line_numbers_are_those_of_the_cut_text() -> None:
    cut = wrapped(LOG, 80)
    report = parse_lines(cut)
    assert report.problem is not None
    assert cut[report.problem.key_line_number - 1] in LOG[-1]
    assert report.lines.total == len(cut)


def test_spaces_that_a_copy_lost_at_the_cut_come_back() -> None:
    cut = [line.rstrip() for line in wrapped(LOG, 80)]
    assert values(cut) == values(LOG)


def test_a_listed_error_is_whole() -> None:
    lines = ErrorLines()
    long = "ERROR 10-03 12:00:01 [core.py:1] " + "a word and " * 12
    for number, line in enumerate(restored_lines(wrapped([long, *LOG, long.upper()], 80)), 1):
        lines.take(number, line)
    assert long.partition("] ")[2].strip() in {found.text for found in lines.lines.values()}


@pytest.mark.parametrize("path", sorted(DATA.glob("*.log")), ids=lambda path: path.name)
def test_own_logs_are_not_taken_for_wrapped(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert wrap_width(lines) is None
    assert values(wrapped(as_shown(iter(lines)), 80)) == values(as_shown(iter(lines)))


def test_a_table_is_no_wrapped_text() -> None:
    table = ["+" + "-" * 77 + "+", *(f"| {n:<75} |" for n in range(30)), "+" + "-" * 77 + "+"]
    assert wrap_width([*LOG[:1], *table]) is None or values([*LOG[:1], *table]) == values(LOG[:1])


@pytest.mark.skipif(not LOGS.is_dir(), reason="the collected logs are not here")
def test_collected_logs_wrapped_at_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {}
    paths = sorted(LOGS.glob("*.log"))
    for path in paths:
        with path.open("rb") as stream:
            lines = list(decoded_lines(stream))
        assert wrap_width(lines[:400]) is None, path.name
        shown = as_shown(iter(lines))
        expected, found = values(shown), values(wrapped(shown, 80))
        differing = {
            key: (expected[key], found[key]) for key in KEYS if expected[key] != found[key]
        }
        if differing:
            wrong[path.name] = differing
    with capsys.disabled():
        print(
            f"\n  {len(paths) - len(wrong)} of {len(paths)} logs read alike when cut at 80 columns"
        )
    assert wrong == {}
