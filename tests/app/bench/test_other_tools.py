"""Result files of other load generators, in the shapes that they write."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.bench.compare import compare_files
from app.bench.other_tools import OtherRun, read_other
from app.cli import run
from app.errors import ExitCode, StokerError

Document = dict[str, Any]


def vllm(scale: float = 1.0, **changes: Any) -> Document:
    document = {
        "backend": "vllm",
        "model_id": "m",
        "num_prompts": 40,
        "request_rate": "inf",
        "max_concurrency": 8,
        "completed": 40,
        "total_input_tokens": 40 * 1024,
        "total_output_tokens": 40 * 128,
        "request_throughput": 2.0 / scale,
        "output_throughput": 256.0 / scale,
        **{f"median_{name}_ms": 10.0 * scale for name in ("ttft", "tpot", "itl")},
    }
    return {**document, **changes}


def spread(median: float, mean: float | None = None) -> Document:
    return {"successful": {"median": median, "mean": median if mean is None else mean}}


def guidellm(**strategy: Any) -> Document:
    metrics = {
        "request_totals": {"successful": 40, "incomplete": 0, "errored": 0, "total": 40},
        "requests_per_second": spread(2.0),
        "output_tokens_per_second": spread(0.0, 256.0),
        "request_latency": spread(1.5),
        "time_to_first_token_ms": spread(12.0),
        "inter_token_latency_ms": spread(9.0),
        "time_per_output_token_ms": spread(11.7),
        "prompt_token_count": spread(1024.0),
        "output_token_count": spread(128.0),
    }
    strategy = strategy or {"type_": "concurrent", "streams": 8}
    return {"metadata": {}, "benchmarks": [{"config": {"strategy": strategy}, "metrics": metrics}]}


def aiperf(**settings: Any) -> Document:
    return {
        "schema_version": "1.4",
        "request_throughput": {"unit": "requests/sec", "avg": 2.0},
        "output_token_throughput": {"unit": "tokens/sec", "avg": 256.0},
        "request_latency": {"unit": "ms", "avg": 1400.0, "p50": 1500.0},
        "time_to_first_token": {"unit": "ms", "p50": 12.0},
        "inter_token_latency": {"unit": "ms", "p50": 9.0},
        "inter_chunk_latency": {"unit": "ms", "p50": 8.5},
        "input_sequence_length": {"unit": "tokens", "avg": 1024.0},
        "output_sequence_length": {"unit": "tokens", "avg": 128.0},
        "input_config": {"phases": [{"type": "profiling", **(settings or {"concurrency": 8})}]},
    }


def read(document: Document) -> OtherRun:
    found = read_other(document)
    assert found is not None
    return found


@pytest.mark.parametrize("made", [vllm(), guidellm(), aiperf()], ids=["vllm", "guidellm", "aiperf"])
def test_the_same_run_reads_alike(made: Document) -> None:
    result = read(made).results[0]

    assert (result.load, result.failed) == ("concurrency 8", 0)
    assert (result.input_tokens, result.output_tokens) == (1024, 128)
    assert result.figures["output_throughput"] == 256
    assert result.figures["request_throughput"] == 2


def test_tpot_is_a_requests_mean_whatever_a_tool_calls_it() -> None:
    assert read(guidellm()).results[0].figures["median_tpot_ms"] == 9.0
    assert read(aiperf()).results[0].figures["median_tpot_ms"] == 9.0
    assert read(aiperf()).results[0].figures["median_itl_ms"] == 8.5
    assert "median_itl_ms" not in read(guidellm()).results[0].figures


def test_seconds_become_milliseconds() -> None:
    slow = {**aiperf(), "request_latency": {"unit": "sec", "p50": 1.5}}

    assert read(slow).results[0].figures["median_e2el_ms"] == 1500
    assert read(guidellm()).results[0].figures["median_e2el_ms"] == 1500


@pytest.mark.parametrize(
    ("document", "load"),
    [
        (vllm(max_concurrency=None), "all at once"),
        (vllm(max_concurrency=None, request_rate=4.0), "rate 4/s"),
        (guidellm(type_="synchronous"), "concurrency 1"),
        (guidellm(type_="poisson", rate=2.5), "rate 2.5/s"),
        (guidellm(type_="throughput"), "all at once"),
        (aiperf(request_rate=3), "rate 3/s"),
    ],
)
def test_loads(document: Document, load: str) -> None:
    assert read(document).results[0].load == load


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., list[str]]:
    def write(*documents: Document) -> list[str]:
        paths = [tmp_path / f"{number}.json" for number in range(len(documents))]
        for path, document in zip(paths, documents, strict=True):
            path.write_text(json.dumps(document))
        return list(map(str, paths))

    return write


def test_one_run_of_each_is_too_little_to_tell(
    written: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "compare", *written(vllm(), guidellm())]) == 3

    out = capsys.readouterr().out
    assert "unclear" in out
    assert "note: A is of vllm bench serve" in out
    assert "time_per_output_token counts the first token" in out


def test_several_files_of_one_side_are_its_rounds(written: Callable[..., list[str]]) -> None:
    names = written(*(vllm(scale) for scale in (1.0, 1.01, 0.99, 2.0, 2.02, 1.98)))
    old, new = ",".join(names[:3]), ",".join(names[3:])

    report = compare_files(old, new, 0.05)
    assert (report.exit_code, report.obstacles) == (ExitCode.NO, ())
    assert {item.verdict for item in report.comparisons} == {"worse"}
    assert compare_files(old, old, 0.05).exit_code == ExitCode.OK


@pytest.mark.parametrize(
    ("other", "obstacle"),
    [
        (vllm(total_input_tokens=40 * 60), "1024.0 and 60.0 input tokens"),
        (vllm(max_concurrency=4), "no load in common: concurrency 8 and concurrency 4"),
        (vllm(completed=39), "1 requests failed"),
        (vllm(total_output_tokens=None), "does not say how many output tokens"),
    ],
)
def test_unlike_runs_are_not_compared(
    written: Callable[..., list[str]], other: Document, obstacle: str
) -> None:
    old, new = written(vllm(), other)
    report = compare_files(old, new, 0.05)

    assert report.exit_code == ExitCode.NOT_ENOUGH_EVIDENCE
    assert any(obstacle in text for text in report.obstacles)


_ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


def test_a_unit_that_is_none_is_no_unit() -> None:
    strange = aiperf()
    strange["time_to_first_token"]["unit"] = ["ms"]
    run_ = read_other(strange)
    assert run_ is not None
    assert run_.results[0].figures["median_ttft_ms"] == 12.0


def test_a_result_of_ours_that_counts_nothing_is_an_obstacle(
    written: Callable[..., list[str]],
) -> None:
    ours = {
        "schema": "stoker.bench",
        "workload": {},
        "findings": [],
        "results": [
            {"server": "s", "load": "concurrency 8", "rounds": [{}], "total_input_tokens": "many"}
        ],
    }
    old, new = written(ours, vllm())
    report = compare_files(old, new, 0.05)
    assert any("does not say how many input tokens" in text for text in report.obstacles)


def test_many_files_of_one_side_have_a_longer_name_than_any_file(tmp_path: Path) -> None:
    side = ",".join(f"A{number}.json" for number in range(60))
    with pytest.raises(StokerError, match=r"cannot read the result A0\.json"):
        compare_files(side, side, 0.05)


@given(
    base=st.sampled_from([vllm(), guidellm(), aiperf(), {"schema": "stoker.bench"}]),
    changes=st.dictionaries(
        st.sampled_from(
            ["benchmarks", "completed", "request_latency", "input_config", "results", "workload"]
        ),
        _ANY_JSON,
        min_size=1,
    ),
)
def test_no_file_is_more_than_an_error(
    tmp_path_factory: pytest.TempPathFactory, base: Document, changes: Document
) -> None:
    path = tmp_path_factory.getbasetemp() / "spoiled.json"
    path.write_text(json.dumps({**base, **changes}))
    try:
        compare_files(str(path), str(path), 0.05)
    except StokerError as error:
        assert error.exit_code == ExitCode.USAGE  # noqa: PT017
