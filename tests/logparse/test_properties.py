"""Any text is read without an exception, in linear time, and alike in every way of feeding it."""

from __future__ import annotations

import gzip
import io

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from logparse import LogParser, LogReport, explain, parse_lines, to_document
from logparse.reading.restore import restored_lines
from logparse.reading.source import decoded_lines
from tests.benchmarks.bench_logparse import SAMPLES, mutations, read_mutated
from tests.places import DATA

PACKED = (b"\x1f\x8b\x08", b"\xff\xfe", b"\xfe\xff")
ZSTD = b"\x28\xb5\x2f\xfd"
SAMPLE = (DATA / "seed_example10.log").read_text().splitlines()
PIECES = st.sampled_from(
    [
        *SAMPLE,
        "Traceback (most recent call last):",
        '  File "x.py", line 1, in f',
        "ValueError: no",
        "INFO:     Application startup complete.",
        "ERROR 10-03 12:00:00 [a.py:1] EngineCore failed to start.",
        "vllm: error: unrecognized arguments: --x",
        "\r  3%|# | 1/35 [00:01<00:02, 3it/s]\r100%|##| 35/35 [00:01<00:02, 3it/s]INFO 10-03 12:00",
        "name-1  | (EngineCore pid=9) ",
        "Killed",
        "build: 7780 (abc)",
        "load_tensors:        CUDA0 model buffer size =  7165.44 MiB",
    ]
)
TEXT = st.text(max_size=200).map(lambda text: text.replace("\n", " "))
LINES = st.lists(
    st.one_of(PIECES, TEXT, st.tuples(PIECES, TEXT).map("".join)),
    max_size=40,
)


@given(LINES)
@settings(max_examples=300, deadline=None)
def test_any_lines_give_a_report(lines: list[str]) -> None:
    parser = LogParser()
    for line in restored_lines(lines):
        parser.feed(line)
    report = parser.report()
    assert report == parse_lines(lines)
    assert report.lines.total == len(lines)
    text = explain(report).text()
    assert all(char.isprintable() or char == "\n" for char in text)
    document = to_document(report)
    assert document["outcome"] == report.outcome.value
    if report.outcome.value != "failed":
        assert document["root_cause"] is None


@pytest.mark.parametrize(
    "line",
    [
        "(EngineCore pid={digits}) INFO 10-03 12:00:00 [a.py:1] text",
        "]x(EngineCore pid={digits}) INFO 10-03 12:00:00 [a.py:1] text",
        "{digits}.12.345.678 I text",
        "[2025-10-03 12:00:00 TP{digits}] text",
    ],
)
def test_numbers_too_long_to_be_numbers(line: str) -> None:
    report = parse_lines([line.format(digits="7" * 5000)])
    assert report.lines.total == 1
    explain(report).text()


def read_at_once(lines: list[str]) -> LogReport:
    parser = LogParser(tells_events=False)
    for line in lines:
        parser.feed(line)
    return parser.report()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_damaged_logs_are_read(seed: int) -> None:
    # A hundred thousand: python -m tests.benchmarks.bench_logparse --fuzz 100000
    whole = [path.read_bytes() for path in sorted(DATA.glob("*.log"))]
    whole += [path.read_bytes() for path in sorted(SAMPLES.glob("*.log"))]
    for log in mutations(whole, 500, seed):
        text = read_mutated(log)
        assert all(char.isprintable() or char == "\n" for char in text), log


@given(LINES)
@settings(max_examples=100, deadline=None)
def test_asking_for_a_report_on_the_way_changes_nothing(lines: list[str]) -> None:
    parser = LogParser()
    for line in lines:
        parser.feed(line)
        parser.report()
    assert parser.report() == read_at_once(lines)


@given(st.binary(max_size=2000).filter(lambda data: not data.startswith((*PACKED, ZSTD))))
def test_any_bytes_are_lines(data: bytes) -> None:
    lines = list(decoded_lines(io.BytesIO(data)))
    assert len(lines) == data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    parse_lines(lines)


@given(st.sampled_from(PACKED), st.binary(max_size=2000))
@example(b"\x1f\x8b\x08", b"")
@example(b"\x1f\x8b\x08", bytes(7) + b"\xff" * 20)
@example(b"\xff\xfe", b"a")
def test_bytes_that_only_begin_like_a_packed_log_are_read(magic: bytes, data: bytes) -> None:
    parse_lines(list(decoded_lines(io.BytesIO(magic + data))))


@given(st.binary(max_size=2000), st.data())
def test_a_damaged_gzip_log_is_read_as_far_as_it_goes(text: bytes, data: st.DataObject) -> None:
    packed = bytearray(gzip.compress(text))
    at = data.draw(st.integers(3, len(packed) - 1))
    packed[at] ^= data.draw(st.integers(1, 255))
    parse_lines(list(decoded_lines(io.BytesIO(packed))))
    cut = gzip.compress(text)[: data.draw(st.integers(0, len(packed)))]
    parse_lines(list(decoded_lines(io.BytesIO(cut))))


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        " ",
        "(",
        "(a pid=1",
        "(a pid=1) ",
        "INFO 10-03 12:00:00 [a.py:1] ",
        "1%|",
        "\r5%|#| 1/2 [",
        "9: ",
        "a | ",
        "Error: ",
        "a.",
        "'api_key': '",
        "://a:",
        "\x1b[0;3",
        "Bearer ",
        "Value error, ",
        "> ",
        ": error: ",
        "x=",
        "model='",
        "KV ",
        "~",
        "=",
        "token=",
    ],
)
def test_a_line_of_a_megabyte_is_read_at_once(unit: str) -> None:
    # The time limit of the whole test run catches a pattern that is worse than linear.
    long = unit * (1_000_000 // len(unit))
    for line in (long, f"(EngineCore pid=1) {long}", f"ERROR 10-03 12:00:00 [a.py:1] {long}",
                 f"args: Namespace({long}", f"ValueError: {long}"):  # fmt: skip
        parser = LogParser()
        parser.feed(line)
        explain(parser.report()).text()
    parse_lines([long] * 4)
