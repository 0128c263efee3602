"""What is left of a log that was copied by hand: half colours, cut heads, quotations, other heads
of the same lines.
"""

from __future__ import annotations

import pytest

from logparse import Outcome, parse_lines
from logparse.reading.restore import restored_lines

LOADED = "10-03 12:00:05 [gpu_model_runner.py:1] Model loading took 2.5000 GiB and 3.1 seconds"
CORE = "(EngineCore_DP0 pid=9)"
FAILED = [
    f"{CORE} ERROR 10-03 12:00:09 [core.py:7] EngineCore failed to start.",
    f"{CORE} Traceback (most recent call last):",
    f'{CORE}   File "/p/vllm/a.py", line 3, in f',
    f"{CORE}     g()",
    f"{CORE} FrobError: no frob",
]


@pytest.mark.parametrize("level", ["O", "FO", "NFO", "", "INFO", "NG", "OR"])
@pytest.mark.parametrize("before", [[], ["user@host:~$ vllm serve o/m"]])
def test_a_level_that_was_cut_off_where_the_copy_begins(level: str, before: list[str]) -> None:
    report = parse_lines([*before, f"{level} {LOADED}".lstrip(), f"INFO {LOADED}"])
    assert report.facts.weights_gib == 2.5
    alone = parse_lines([*before, f"{level} {LOADED}".lstrip()])
    assert (alone.facts.weights_gib, alone.engine) == (2.5, "vllm")


@pytest.mark.parametrize(
    "form",
    [
        "36m{core}0m {rest}",
        "1;36m{core}0;0m {rest}",
        "[1;36m{core}[0;0m {rest}",
        "^[[1;36m{core}^[[0;0m {rest}",
        "\\x1b[1;36m{core}\\x1b[0;0m {rest}",
        "#033[1;36m{core}#033[0;0m {rest}#015",
        "[EngineCore_DP0][pid=9] {rest}",
        "[EngineCore_DP0 pid=9] {rest}",
        "<EngineCore_DP0 pid:9> {rest}",
    ],
)
def test_another_form_of_the_process(form: str) -> None:
    lines = [form.format(core=CORE, rest=line[len(CORE) + 1 :]) for line in FAILED]
    report = parse_lines(lines)
    assert [(p.name, p.pids) for p in report.processes] == [("EngineCore_DP0", (9,))]
    assert report.problem is not None
    assert (report.problem.key_line, report.problem.key_line_number) == ("FrobError: no frob", 5)


def test_a_process_without_a_number() -> None:
    lines = [line.replace(" pid=9", "") for line in FAILED]
    report = parse_lines(lines)
    assert [(p.name, p.pids) for p in report.processes] == [("EngineCore_DP0", ())]
    assert report.problem is not None
    assert report.problem.key_line == "FrobError: no frob"


@pytest.mark.parametrize("bar", ["> ", "▎ ", "│ ", "┃", "» ", "> > "])
def test_a_quotation(bar: str) -> None:
    report = parse_lines(["They wrote:", *(bar + line for line in FAILED), "What is it?"])
    assert report.problem is not None
    assert report.problem.key_line == "FrobError: no frob"


def test_a_message_that_was_broken_into_lines_by_hand() -> None:
    report = parse_lines(
        [
            "vLLM API server version 0.11.0",
            "ValueError: Free memory on device (1.5/8.0 GiB) on startup is less than",
            "desired GPU memory utilization (0.9, 7.2 GiB). Decrease GPU memory",
            "utilization or reduce GPU memory used by other processes.",
        ]
    )
    assert report.problem is not None
    assert report.problem.id == "A3"


def test_milliseconds_in_the_header() -> None:
    report = parse_lines([f"INFO {LOADED}".replace("12:00:05", "12:00:05.129")])
    assert report.facts.weights_gib == 2.5


def test_sglang_with_a_level_and_a_file() -> None:
    head = "[2026-10-03 12:00:01] INFO model_runner.py:900: "
    report = parse_lines(
        [
            head
            + "Load weight end. type=Frob, dtype=torch.bfloat16, avail mem=2 GB, mem usage=8.5 GB."
        ]
    )
    assert (report.engine, report.facts.weights_gib) == ("sglang", 8.5)


@pytest.mark.parametrize(
    "head",
    [
        "2026-10-03T12:00:01.7Z  INFO engine.run: ",
        "2026-10-03T12:00:01.7Z  INFO frob::pump::ingress: ",
        "2026-10-03 12:00:01,123 - INFO - frob.engine - ",
        "[2026-10-03 12:00:01] [INFO] frob: ",
        "2026-10-03 12:00:01 | INFO | frob.engine:run:12 - ",
    ],
)
def test_a_launchers_own_heads_around_lines_without_any(head: str) -> None:
    lines = [
        "vLLM API server version 0.11.0",
        "Using max model len 4096",
        "Model loading took 2.5000 GiB and 3.1 seconds",
        "EngineCore failed to start.",
    ]
    report = parse_lines([head + line for line in lines])
    assert (report.outcome, report.engine) == (Outcome.FAILED, "vllm")
    assert (report.facts.max_model_len, report.facts.weights_gib) == (4096, 2.5)


@pytest.mark.parametrize("key", ["exc_info", "exception", "stack_trace", "traceback"])
def test_json_with_a_field_for_the_traceback(key: str) -> None:
    traceback = "\\n".join(line.removeprefix(f"{CORE} ").replace('"', '\\"') for line in FAILED[1:])
    lines = [
        '{"level": "INFO", "message": "vLLM API server version 0.11.0"}',
        '{"level": "INFO", "message": "Using max model len 4096"}',
        f'{{"level": "ERROR", "{key}": "{traceback}", "message": "EngineCore failed to start."}}',
    ]
    report = parse_lines(lines)
    assert (report.outcome, report.facts.max_model_len) == (Outcome.FAILED, 4096)
    assert report.problem is not None
    assert (report.problem.key_line, report.problem.key_line_number) == ("FrobError: no frob", 3)


def test_json_of_several_lines_in_a_value_keeps_its_number() -> None:
    text = "\\n".join(line.replace('"', '\\"') for line in FAILED)
    lines = ['{"t": 1, "message": "begun"}', f'{{"t": 2, "message": "{text}"}}']
    report = parse_lines(lines)
    assert report.problem is not None
    assert (report.problem.key_line, report.problem.key_line_number) == ("FrobError: no frob", 2)


@pytest.mark.parametrize(
    "lines",
    [
        ["a, b, c", "d, e, f", "1, 2, 3"],
        ["2026-10-03 12:00:01,123 - INFO - a", "2026-10-03 12:00:01,124 - INFO - b, c"],
        ['{"a": 1}', '{"b": [2]}'],
        ["x=1 y=2", "x=3 y=4"],
        ["'a'", "'b'"],
        ["(a) b", "[c] d", "{e} f"],
        ["[1/3] Building CXX object a.o", "[2/3] Building CXX object b.o"],
    ],
)
def test_what_holds_no_line_of_a_server_stays(lines: list[str]) -> None:
    assert list(restored_lines(lines)) == lines
