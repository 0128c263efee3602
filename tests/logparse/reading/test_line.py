from __future__ import annotations

import pytest

from logparse.reading.line import LogLine, seconds_between, split_line, stamp_seconds
from logparse.reading.progress import drop_overwritten, is_bar, read_bar

HEADER = "INFO 10-03 12:00:01 [core.py:123] hello"
STAMP = "10-03 12:00:01"


@pytest.mark.parametrize(
    ("text", "process", "pid"),
    [
        (HEADER, None, None),
        ("INFO 10-03 12:00:01 core.py:123] hello", None, None),
        (f"(APIServer pid=7) {HEADER}", "APIServer", "7"),
        (f"(EngineCore_DP0 pid=7) {HEADER}", "EngineCore_DP0", "7"),
        (f"(Worker_PP1_TP0 pid=7) {HEADER}", "Worker_PP1_TP0", "7"),
        (f"(VllmWorker rank=1 pid=7) {HEADER}", "VllmWorker rank=1", "7"),
        (f"(RayWorkerWrapper pid=7, ip=10.0.0.1) {HEADER}", "RayWorkerWrapper", "7"),
        (f"\x1b[1;36m(EngineCore pid=7)\x1b[0;0m {HEADER}", "EngineCore", "7"),
        (f"\x1b[0;36m(EngineCore pid=7)\x1b[0m {HEADER}", "EngineCore", "7"),
        (f"\x1b[1;36m(EngineCore pid=7) {HEADER}", "EngineCore", "7"),
        (f"(EngineCore pid=7)\x1b[0;0m {HEADER}", "EngineCore", "7"),
        (f"\x1b[1;36m(EngineCore pid=7)\x1b[0;0m \x1b[32m{HEADER}", "EngineCore", "7"),
        (f"(EngineCore pid=7){HEADER}", "EngineCore", "7"),
        (f"(EngineCore pid=7) [DEBUG] cut of{HEADER}", "EngineCore", "7"),
        (f"  [--port] cut of{HEADER}", None, None),
        (f"(A pid=1) (B pid=2) {HEADER}", "B", "2"),
        (f"vllm-1  | (EngineCore pid=7) {HEADER}", "EngineCore", "7"),
        (f"105: (EngineCore pid=7) {HEADER}", "EngineCore", "7"),
        (f"0: vllm-1  | {HEADER}", None, None),
        (f"2026-01-02T03:04:05.678Z (EngineCore pid=7) {HEADER}", "EngineCore", "7"),
        (f"2026-01-02T03:04:05.678901Z stdout F (EngineCore pid=7) {HEADER}", "EngineCore", "7"),
        (f"Jan  2 03:04:05 host vllm[88]: (EngineCore pid=7) {HEADER}", "EngineCore", "7"),
        (f"> (EngineCore pid=7) {HEADER}", "EngineCore", "7"),
        (f"100%|##| 3/3 [00:01<00:00, 1.9it/s](Worker pid=7) {HEADER}", "Worker", "7"),
        (f"(Worker pid=7) bar: 50%|#| 1/2 [00:01<00:01, 1it/s]{HEADER}", "Worker", "7"),
    ],
)
def test_header_under_prefixes_and_wrappers(
    text: str, process: str | None, pid: str | None
) -> None:
    assert split_line(text) == LogLine(process, pid, "INFO", STAMP, "hello", True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(Worker pid=7) INFO [a.py:3] hi", ("Worker", "INFO", None, "hi")),
        ("(APIServer pid=7) INFO:     Application x", ("APIServer", "INFO", None, "Application x")),
        ("[2026-04-06 01:31:54 TP1] hi", ("TP1", None, "2026-04-06 01:31:54", "hi")),
        ("[2026-04-06 01:31:54] INFO:     x", (None, "INFO", "2026-04-06 01:31:54", "x")),
        ("0.00.001.948 W srv  x: y", (None, "WARNING", "0.00.001.948", "srv  x: y")),
        ("(EngineCore pid=7)   File x", ("EngineCore", None, None, "  File x")),
        ("(EngineCore pid=7)", ("EngineCore", None, None, "")),
        ("plain words", (None, None, None, "plain words")),
        (
            "  3%|▎         | 1/35 [00:00<00:09]",
            (None, None, None, "  3%|▎         | 1/35 [00:00<00:09]"),
        ),
    ],
)
def test_other_shapes(text: str, expected: tuple[str | None, ...]) -> None:
    line = split_line(text)
    assert (line.process, line.level, line.stamp, line.message) == expected


def test_clock() -> None:
    start, end = stamp_seconds("10-03 12:00:01"), stamp_seconds("10-03 12:01:10")
    assert start is not None
    assert end is not None
    assert seconds_between(start, end) == 69
    assert stamp_seconds("99-99 12:00:00") is None
    assert stamp_seconds("0.01.250.500") == 1.2505


def test_new_years_eve() -> None:
    start, end = stamp_seconds("12-31 23:59:50"), stamp_seconds("01-01 00:00:10")
    assert start is not None
    assert end is not None
    assert seconds_between(start, end) == 20


def test_the_last_state_of_a_bar_remains() -> None:
    line = "a:   0%|  | 0/2 [00:00<?, ?it/s]\ra:  50%|# | 1/2 [00:01<00:01, 1it/s]\rtext"
    assert drop_overwritten(line) == ["a:  50%|# | 1/2 [00:01<00:01, 1it/s]", "text"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Loading shards:  25% Completed | 1/4 [00:04<00:12,  4.10s/it]", ("Loading shards", 1, 4)),
        (
            "Capturing (decode, FULL): 100%|####| 35/35 [00:03<00:00]",
            ("Capturing (decode, FULL)", 35, 35),
        ),
        ("a: 1%|#| 1/9 [x]b: 2%|#| 2/9 [y]", ("b", 2, 9)),
    ],
)
def test_reads_bars(text: str, expected: tuple[str, int, int]) -> None:
    assert is_bar(text)
    assert read_bar(text) == expected


def test_a_percentage_is_no_bar() -> None:
    assert not is_bar("GPU KV cache usage: 3.9%, Prefix cache hit rate: 0.0%")
    assert read_bar("100% sure") is None
