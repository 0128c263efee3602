from __future__ import annotations

import json
import tracemalloc
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.bench.prompts import measure_words
from app.bench.trace import BLOCK_TOKENS, Trace, TracePrompts, TraceRequest, read_trace
from app.errors import ExitCode, StokerError, UsageError


def words_only(text: str) -> int:
    return len(text.split())


COSTS = measure_words(words_only)


def mooncake(timestamp: float, inputs: int, outputs: int, blocks: list[int]) -> str:
    record = {"timestamp": timestamp, "input_length": inputs, "output_length": outputs}
    return json.dumps({**record, "hash_ids": blocks})


def own(timestamp: float, inputs: int, outputs: int, blocks: list[int], size: int = 16) -> str:
    """A line of `--record-traffic`."""
    return f'{{"block_size": {size}, ' + mooncake(timestamp, inputs, outputs, blocks)[1:]


def trace_of(path: Path, *lines: str) -> Trace:
    path.write_text("\n".join(lines) + "\n")
    return read_trace(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace"


def test_mooncakes_lines(path: Path) -> None:
    trace = trace_of(path, mooncake(3000, 700, 9, [1, 2]), "", mooncake(1000, 512, 4, [1]))

    assert trace.requests == (
        TraceRequest(0.0, 512, 4, array("q", [1])),
        TraceRequest(2.0, 700, 9, array("q", [1, 2])),
    )
    assert trace.repeated_share == 512 / 1212


def test_azures_table(path: Path) -> None:
    trace = trace_of(
        path,
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:15:46.6805900,374,44",
        "2023-11-16 18:15:50.9951690,396,109",
    )

    assert [(one.input_tokens, one.output_tokens) for one in trace.requests] == [
        (374, 44),
        (396, 109),
    ]
    assert trace.requests[1].due_s == pytest.approx(4.314579)
    assert trace.repeated_share == 0


def test_azures_table_of_2024_names_its_zone(path: Path) -> None:
    trace = trace_of(
        path,
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2024-05-10 00:00:00.009930+00:00,2162,5",
        "2024-05-10 00:00:00.017335+00:00,2399,6",
    )

    assert trace.requests[1].due_s == pytest.approx(0.007405, abs=1e-6)


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["{"],
        ["[1]"],
        ['{"timestamp": 0, "input_length": 5}'],
        [mooncake(0, 0, 4, [])],
        [mooncake(0, 5, 0, [])],
        [mooncake(-1, 5, 4, [])],
        [own(0, 5, 4, [], 0)],
        ['{"timestamp": NaN, "input_length": 5, "output_length": 4}'],
        ["TIMESTAMP,ContextTokens,GeneratedTokens", "yesterday,1,2"],
        ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46,1"],
        ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46,nan,2"],
        ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46,1,inf"],
        ["TIMESTAMP,ContextTokens,GeneratedTokens", f"2023-11-16 18:15:46,{'9' * 140_000},2"],
    ],
)
def test_what_is_no_trace_is_named(path: Path, lines: list[str]) -> None:
    with pytest.raises(UsageError, match="trace"):
        trace_of(path, *lines)


@given(st.binary(max_size=200))
def test_no_file_is_more_than_an_error(tmp_path_factory: pytest.TempPathFactory, b: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "spoiled"
    path.write_bytes(b)
    try:
        read_trace(path)
    except StokerError as error:
        assert error.exit_code == ExitCode.USAGE  # noqa: PT017


def test_prompts_have_the_lengths_and_the_shared_beginnings(path: Path) -> None:
    trace = trace_of(
        path,
        mooncake(0, 600, 3, [7, 8]),
        mooncake(250, 1100, 5, [7, 9, 10]),
        mooncake(9, 40, 1, []),
    )

    first, middle, last = TracePrompts(trace, COSTS, None, "1").take(99)

    texts = [str(prompt.content).split() for prompt in (first, middle, last)]
    assert [len(words) for words in texts] == [600, 40, 1100]
    assert texts[0][:BLOCK_TOKENS] == texts[2][:BLOCK_TOKENS]
    assert texts[0][BLOCK_TOKENS:] != texts[2][BLOCK_TOKENS:600]
    assert [prompt.due_s for prompt in (first, middle, last)] == [0.0, 0.009, 0.25]
    assert [prompt.output_tokens for prompt in (first, middle, last)] == [3, 1, 5]


def test_each_round_has_new_words(path: Path) -> None:
    prompts = TracePrompts(trace_of(path, mooncake(0, 600, 3, [7, 8])), COSTS, None, "1")

    texts = {str(prompt.content) for _ in range(5) for prompt in prompts.take(1)}
    assert len(texts) == 5


def test_two_servers_get_the_same_round(path: Path) -> None:
    lines = [mooncake(number, 30 + number, 3, [number // 2]) for number in range(9)]
    round_ = TracePrompts(trace_of(path, *lines), COSTS, None, "1").take(99)

    assert len(round_) == 9
    assert list(round_) == list(round_)


def test_the_blocks_of_a_servers_own_record(path: Path) -> None:
    big = (1 << 48) - 1
    trace = trace_of(
        path, own(1_700_000_000_000, 40, 3, [5, 6, 7]), own(1_700_000_000_250, 40, 3, [5, 6, big])
    )

    first, second = TracePrompts(trace, COSTS, None, "1").take(2)
    texts = [str(prompt.content).split() for prompt in (first, second)]
    assert [len(words) for words in texts] == [40, 40]
    assert texts[0][:32] == texts[1][:32]
    assert texts[0][32:] != texts[1][32:]
    assert second.due_s == pytest.approx(0.25)
    assert trace.repeated_share == 32 / 80


def test_ids_that_are_no_small_numbers_tell_blocks_apart_too(path: Path) -> None:
    lines = [
        f'{{"timestamp": 0, "input_length": 4, "output_length": 1, "hash_ids": [{block}]}}'
        for block in ('"a"', '"b"', 1 << 70, -3, '"a"')
    ]
    blocks = [one.blocks[0] for one in trace_of(path, *lines).requests]
    assert len(set(blocks)) == 4
    assert blocks[0] == blocks[4]


def test_prompts_are_made_up_as_they_are_asked_for(path: Path) -> None:
    """All prompts of the trace at once would be ten times what may be held here."""
    lines = [mooncake(number, 2000, 3, [number % 3, number + 10]) for number in range(400)]
    round_ = TracePrompts(trace_of(path, *lines), COSTS, None, "1").take(400)

    tracemalloc.start()
    try:
        total = sum(len(prompt.content) for prompt in round_)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total > 3_000_000
    assert peak < total / 2


def test_what_does_not_fit_is_counted_apart(path: Path) -> None:
    trace = trace_of(path, mooncake(0, 600, 3, []), mooncake(1, 60, 3, []))

    prompts = TracePrompts(trace, COSTS, 602, "1")
    assert (prompts.num_too_long, len(prompts.take(9))) == (1, 1)
    with pytest.raises(UsageError, match="fits into 62"):
        TracePrompts(trace, COSTS, 62, "1")
