"""Prefixes that no wrapper knows, web pages, and logs of several starts: the values stay."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from typing import Any

import pytest

from logparse import Outcome, parse_lines, to_document
from logparse.reading.restore import common_prefix, restored_lines
from logparse.reading.source import decoded_lines
from tests.logparse.shared_logs import LOGS
from tests.logparse.wrappings import KEYS
from tests.places import DATA

OWN = (DATA / "own_engine_start.log").read_text().splitlines()
FAILED = [
    "INFO 10-03 12:00:00 [api_server.py:1] vLLM API server version 0.9.1",
    "INFO 10-03 12:00:01 [config.py:1] Using max model len 4096",
    "INFO 10-03 12:00:01 [config.py:1] Chunked prefill is enabled",
    "Traceback (most recent call last):",
    '  File "/v/api_server.py", line 3, in <module>',
    "    sock.bind(addr)",
    "",
    "OSError: [Errno 98] Address already in use",
]
Change = Callable[[int, str], str]
CHANGES: dict[str, Change] = {
    "stern": lambda n, line: f"vllm-7f9c5 vllm-container {line}",
    "srun of several nodes": lambda n, line: f"node0{n % 2}: {n % 2}: {line}",
    "a launcher's logging": lambda n, line: (
        f"2026-01-02 03:04:{n % 60:02},123 - run - INFO - {line}"
    ),
    "a pod behind a bracketed time": lambda n, line: (
        f"[2026-01-02 03:04:{n % 60:02}] a7f-x9 >> {line}"
    ),
    "Docker Desktop": lambda n, line: f"2026-01-02 03:04:{n % 60:02} {line}",
    "a bracketed time": lambda n, line: f"[2026-01-02 03:04:{n % 60:02},123] {line}",
    "ts of moreutils": lambda n, line: f"{'Jan' if n % 2 else 'Feb'} 02 03:04:05 {line}",
    "slashes in the date": lambda n, line: f"01/02/2026 03:04:{n % 60:02} {line}",
    "grep -n": lambda n, line: f"{n}:{line}",
    "grep -n of two files": lambda n, line: f"server.log:{n}:{line}",
    "a table's bar": lambda n, line: f"| {line}",
    "indented": lambda n, line: f"    {line}",
    "a prefix whose space was lost": lambda n, line: f"node7 | out | {line}".rstrip(),
    "JSON behind a name": lambda n, line: f"vllm-0 vllm {json.dumps({'message': line})}",
    "JSON": lambda n, line: json.dumps({"log": line + "\n", "stream": "stderr"}),
    "a web page": lambda n, line: html.escape(line).replace("  ", "\xa0 "),
    "escape characters made visible": lambda n, line: line.replace("\x1b", "^["),
    "escape characters lost": lambda n, line: line.replace("\x1b", ""),
    "blank lines between": lambda n, line: f"{line}\n",
    "windows": lambda n, line: f"{line}\r",
}


def values(lines: list[str]) -> dict[str, Any]:
    document = to_document(parse_lines(lines))
    return {key: document[key] for key in KEYS}


def shown(line: str) -> str:
    return line.rstrip("\r\n").rpartition("\r")[2]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("lines", [FAILED, OWN], ids=["failed", "ready"])
def test_a_changed_log(lines: list[str], change: Change) -> None:
    changed = [change(n, line) for n, line in enumerate(lines)]
    assert values(changed) == values(lines)


def test_the_line_number_stays() -> None:
    report = parse_lines([f"node7 | out | {line}" for line in FAILED])
    assert report.problem is not None
    assert (report.problem.key_line_number, report.problem.key_line) == (8, FAILED[-1])


@pytest.mark.parametrize("lines", [FAILED, OWN], ids=["failed", "ready"])
def test_a_log_as_it_was_written_is_not_touched(lines: list[str]) -> None:
    assert common_prefix(lines) is None
    assert list(restored_lines(lines)) == lines


def test_an_indented_traceback_keeps_its_own_indentation() -> None:
    assert list(restored_lines([f"    {line}" for line in FAILED])) == FAILED


def test_a_name_on_some_lines_only_is_no_prefix() -> None:
    assert common_prefix([*FAILED, "web | " + FAILED[0], "web | " + FAILED[1]]) is None


READY = [
    "INFO 10-03 12:00:00 [api_server.py:1] vLLM API server version 0.8.4",
    "INFO 10-03 12:00:01 [config.py:1] Using max model len 4096",
    "INFO:     Application startup complete.",
]


def test_a_newer_release_in_the_same_file_is_another_start() -> None:
    newer = [
        "(APIServer pid=7) INFO 10-04 12:00:00 [api_utils.py:1] vLLM API server version 0.30.0"
    ]
    report = parse_lines([*READY, *newer])
    assert [attempt.outcome for attempt in report.attempts] == [Outcome.READY, Outcome.RUNNING]
    assert (report.facts.engine_version, report.facts.max_model_len) == ("0.30.0", None)


def test_a_refused_command_behind_a_served_one_is_another_start() -> None:
    report = parse_lines([*READY, "vllm serve: error: unrecognized arguments: --foo"])
    assert [attempt.outcome for attempt in report.attempts] == [Outcome.READY, Outcome.FAILED]
    assert report.problem is not None
    assert report.problem.id == "F2"


@pytest.mark.skipif(not LOGS.is_dir(), reason="the collected logs are not here")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_the_collected_logs_changed(change: Change) -> None:
    for path in sorted(LOGS.glob("*.log")):
        with path.open("rb") as stream:
            lines = [shown(line) for line in decoded_lines(stream)]
        changed = [change(n, line) for n, line in enumerate(lines)]
        assert values(changed) == values(lines), path.name


@pytest.mark.skipif(not LOGS.is_dir(), reason="the collected logs are not here")
def test_a_collected_log_cut_short_tells_nothing_that_the_whole_one_does_not() -> None:
    keys = (
        "engine_version",
        "weights_gib",
        "kv_memory_gib",
        "kv_tokens",
        "graph_gib",
        "engine_init_s",
    )
    for path in sorted(LOGS.glob("*.log")):
        with path.open("rb") as stream:
            lines = list(decoded_lines(stream))
        whole = to_document(parse_lines(lines))
        if whole["attempts"]:
            continue
        for eighth in range(1, 8):
            part = to_document(parse_lines(lines[: len(lines) * eighth // 8]))
            for key in keys:
                if part[key] is not None and not isinstance(whole[key], list):
                    assert part[key] == whole[key], (path.name, eighth, key)
            if whole["outcome"] != "failed":
                assert part["outcome"] != "failed", (path.name, eighth)
