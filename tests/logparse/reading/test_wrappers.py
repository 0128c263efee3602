"""What other programs put in front of a line comes off, in any order; the line itself stays."""

from __future__ import annotations

import itertools
import json

import pytest

from logparse import parse_lines
from logparse.reading.line import LogLine, split_line
from logparse.reading.wrappers import json_message, peel

HEADED = "(EngineCore pid=7) INFO 10-03 12:00:01 [core.py:123] hello"
FRAME = '(EngineCore pid=7)   File "/v/core.py", line 3, in run'
EXPECTED = LogLine("EngineCore", "7", "INFO", "10-03 12:00:01", "hello", True)

WRAPPERS = [
    "vllm-1  | ",
    "vllm-openai.server_1 | ",
    "2026-01-02T03:04:05.678901234Z ",
    "2026-01-02T03:04:05+01:00 ",
    "2026-01-02T03:04:05.678901Z stdout F ",
    "2026-01-02T03:04:05.678901Z stderr P ",
    "2026-01-02T03:04:05+0000 host vllm[88]: ",
    "[2026-01-02T03:04:05Z] ",
    "2026-01-02 03:04:05.678 ",
    "2026-01-02 03:04:05,678 | ",
    "03:04:05 ",
    "[03:04:05] ",
    "1767323045123 ",
    "Jan  2 03:04:05 host vllm[88]: ",
    "Jan 12 03:04:05.123456 gpu-01 container/vllm[1]: ",
    "<6>",
    "<134>1 2026-01-02T03:04:05Z host vllm 88 - - ",
    "0: ",
    " 3: ",
    "105:",
    "   105\t",
    "[pod/vllm-0/vllm] ",
    "[0] ",
    "[1,0]<stdout>: ",
    "(RayWorkerWrapper pid=9, ip=10.0.0.1) ",
    "(APIServer pid=1) ",
    "> ",
    "> > ",
    ">> ",
    "```",
    "    ",
    "\t",
    '{app="vllm", pod="vllm-0"} ',
    "\x1b[0;36m",
]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_one_wrapper(wrapper: str) -> None:
    assert split_line(wrapper + HEADED) == EXPECTED


@pytest.mark.parametrize("pair", list(itertools.permutations(WRAPPERS[:25], 2)), ids=str)
def test_two_wrappers_in_any_order(pair: tuple[str, str]) -> None:
    assert split_line("".join(pair) + HEADED) == EXPECTED


@pytest.mark.parametrize("wrapper", [w for w in WRAPPERS if w not in ("    ", "\t", "```")])
def test_a_traceback_keeps_its_indentation(wrapper: str) -> None:
    line = split_line(wrapper + FRAME)
    assert (line.process, line.message) == ("EngineCore", '  File "/v/core.py", line 3, in run')


@pytest.mark.parametrize(
    "wrapper",
    ["v-1 | ", "2026-01-02T03:04:05Z ", "0: ", "> ", "[pod/v-0/v] ", "Jan  2 03:04:05 h v[8]: "],
)  # fmt: skip
def test_a_traceback_without_any_header(wrapper: str) -> None:
    lines = [
        "INFO 10-03 12:00:00 [api_server.py:1] vLLM API server version 0.9.1",
        "Traceback (most recent call last):",
        '  File "/v/api_server.py", line 3, in <module>',
        "OSError: [Errno 98] Address already in use",
    ]
    report = parse_lines([wrapper + line for line in lines])
    assert report.problem is not None
    assert report.problem.key_line == lines[-1]
    assert report.problem.key_line_number == 4


@pytest.mark.parametrize(
    "document",
    [
        {"message": HEADED},
        {"log": HEADED + "\n", "stream": "stdout", "time": "2026-01-02T03:04:05Z"},
        {"ts": 1, "level": "info", "msg": HEADED},
        {"MESSAGE": HEADED, "_PID": "88"},
        {"MESSAGE": list(HEADED.encode())},
        {"line": HEADED, "labels": {"app": "vllm"}},
        {"textPayload": HEADED},
        {"jsonPayload": {"message": HEADED}},
    ],
    ids=lambda document: next(reversed(document)),
)
def test_json_lines(document: dict[str, object]) -> None:
    text = json.dumps(document)
    assert split_line(text) == EXPECTED
    assert split_line(f"vllm-1  | {text}") == EXPECTED


@pytest.mark.parametrize(
    "text",
    [
        "plain words",
        "  indented words",
        "/v/x.py:105: UserWarning: no",
        "{not json}",
        '{"id": 7}',
        '{"model": "a", "message": 7}',
        "[2026-04-06 01:31:54 TP1] hi",
        "[rank0]: Traceback (most recent call last):",
        "0.00.001.948 W srv  x: y",
        "Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:04<00:12,  4.10s/it]",
        "  3%|#         | 1/35 [00:00<00:09]",
        "Maybe 12 times",
        "INFO:     127.0.0.1:80 - GET",
    ],
)
def test_what_is_no_wrapper_stays(text: str) -> None:
    assert peel(text) is text


def test_json_that_is_too_deep_or_cut_is_text() -> None:
    assert json_message('{"message": ' + "[" * 100_000 + "}") is None
    assert json_message('{"message": "cut') is None
