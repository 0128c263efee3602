"""Figures, findings, knee and comparison from rounds that are written down by hand."""

from __future__ import annotations

import json
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.bench.checks import Expected, findings_of, notes_of, unequal_work
from app.bench.compare import compare
from app.bench.report import parse_slo, ratio_documents, result_document
from app.bench.round import Amount, BenchTarget, Load, Round
from app.bench.run import find_knees
from app.bench.stream import RequestResult
from app.bench.table import _rate_rows
from app.cli import run
from app.client.metrics.sample import MetricsSample
from app.errors import StokerError

TARGET = BenchTarget("http://127.0.0.1:1", "m")
LOAD = Load("concurrency", 2)
BEFORE = MetricsSample(
    0, "vllm", prompt_tokens=100, generation_tokens=50, prefix_hits=10, preemptions=1
)
# Two answers of 3 tokens to 20 tokens each.
AFTER = replace(BEFORE, prompt_tokens=140, generation_tokens=56, prefix_hits=10)


def outcome(due_s: float, *chunks_s: float, **changes: Any) -> RequestResult:
    fields = {"wanted_tokens": len(chunks_s), "expected_prompt_tokens": 20, "prompt_tokens": 20}
    return RequestResult(due_s, due_s, max(chunks_s), array("d", chunks_s), **{**fields, **changes})


def round_of(*outcomes: RequestResult, **changes: Any) -> Round:
    fields = {"cpu_s": 0.1, "before": BEFORE, "after": AFTER, **changes}
    return Round(TARGET, LOAD, outcomes, **fields)


def two_answers(scale: float = 1.0, **changes: Any) -> Round:
    first = outcome(0, 1 * scale, 2 * scale, 4 * scale, **changes)
    return round_of(first, outcome(0, 2 * scale, 3 * scale, 4 * scale, **changes))


def ids(*rounds: Round, expected: Expected | None = None) -> list[str]:
    return [finding.id for finding in findings_of(rounds, expected or Expected(0.0))]


def test_figures_of_one_round() -> None:
    result = result_document([two_answers()], {"ttft": 1500})

    assert result["duration"] == 4
    assert (result["completed"], result["failed"], result["errors"]) == (2, 0, {})
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (40, 6)
    assert result["output_throughput"] == 1.5
    assert result["total_token_throughput"] == 11.5
    assert result["request_throughput"] == 0.5
    assert result["request_goodput"] == 0.25
    assert result["mean_ttft_ms"] == result["median_ttft_ms"] == 1500
    assert result["p99_ttft_ms"] == pytest.approx(1990)
    assert result["mean_tpot_ms"] == 1250  # (4 - 1) / 2 and (4 - 2) / 2 seconds
    assert result["mean_itl_ms"] == 1250
    assert result["median_itl_ms"] == 1000
    assert result["mean_e2el_ms"] == 4000
    assert result["client_cpu_share"] == pytest.approx(0.1 / 4)
    assert result["server_counters"] == {
        "prompt_tokens": 40,
        "generation_tokens": 6,
        "prefix_hits": 0,
        "preemptions": 0,
    }
    assert result["intervals"]["output_throughput"] == {
        "value": 1.5,
        "low": None,
        "high": None,
        "n": 1,
    }


def test_throughput_is_the_mean_of_the_rounds() -> None:
    result = result_document([two_answers(), two_answers(2)], {})

    assert result["output_throughput"] == pytest.approx((1.5 + 0.75) / 2)
    assert result["intervals"]["output_throughput"]["n"] == 2
    assert result["request_goodput"] is None
    assert [part["duration"] for part in result["rounds"]] == [4, 8]


def test_failures_count_by_kind_and_not_as_answers() -> None:
    failed = outcome(0, 4.0, error="HTTP 500", detail="no memory")
    result = result_document([round_of(outcome(0, 1.0, 2.0), failed)], {})

    assert (result["completed"], result["failed"]) == (1, 1)
    assert result["errors"] == {"HTTP 500": 1}


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        ("HTTP 429", "3 requests are waiting"),
        ("HTTP 503", "The engine is currently busy and cannot accept new requests."),
    ],
)
def test_refusals_are_no_failures(error: str, detail: str) -> None:
    refused = outcome(0, 1.0, error=error, detail=detail)
    busy = round_of(outcome(0, 1.0, 2.0), refused, outcome(0, 4.0, error="HTTP 503"))
    result = result_document([busy], {})

    assert result["num_prompts"] == 3
    assert (result["completed"], result["failed"], result["refused"]) == (1, 1, 1)
    assert result["errors"] == {"HTTP 503": 1}
    assert result["p99_refusal_ms"] == pytest.approx(1000)
    assert any("1 of 3 requests were refused" in note for note in notes_of([busy]))
    assert [row[7] for row in _rate_rows([result])] == ["refused", "1"]


def test_nothing_answered_leaves_latencies_unknown() -> None:
    result = result_document([round_of(outcome(0, 4.0, error="timeout"))], {})

    assert result["mean_ttft_ms"] is None
    assert result["output_throughput"] == 0


def test_ratios_of_rounds_that_alternate() -> None:
    ours = result_document([two_answers(), two_answers(2)], {})
    theirs = result_document([two_answers(2), two_answers(4)], {})

    ratios = ratio_documents(ours, theirs)

    assert ratios["output_throughput"] is not None
    assert ratios["output_throughput"]["value"] == pytest.approx(2)
    assert ratios["median_e2el_ms"] == pytest.approx(
        {"value": 0.5, "low": 0.5, "high": 0.5, "n": 2}
    )


def test_a_clean_round_has_no_findings() -> None:
    assert ids(two_answers()) == []
    assert notes_of([two_answers()]) == []


@pytest.mark.parametrize(
    ("finding", "round_"),
    [
        ("prefix-cache", two_answers(cached_tokens=16)),
        ("prefix-cache", replace(two_answers(), after=replace(AFTER, prefix_hits=26))),
        ("unequal-work", two_answers(wanted_tokens=4)),
        ("other-load", replace(two_answers(), after=replace(AFTER, generation_tokens=90))),
        ("counters-differ", replace(two_answers(), after=replace(AFTER, generation_tokens=53))),
        ("client-limit", replace(two_answers(), cpu_s=3.9)),
        ("errors", round_of(outcome(0, 1.0, 2.0, 4.0), outcome(0, 1.0, error="timeout"))),
        (
            "restart",
            replace(
                two_answers(), after=MetricsSample(1, "vllm", prompt_tokens=40, generation_tokens=6)
            ),
        ),
    ],
)
def test_findings(finding: str, round_: Round) -> None:
    assert finding in ids(round_)


def test_a_late_client_is_a_finding() -> None:
    late = outcome(0, 1.0, 2.0, 4.0)
    late.sent_s = 0.2

    assert ids(round_of(late, outcome(0, 1.0, 2.0, 4.0))) == ["client-late"]


def test_a_cache_that_the_workload_explains_is_no_finding() -> None:
    assert ids(two_answers(cached_tokens=10), expected=Expected(0.5)) == []


def test_repeated_prompts_count_where_the_server_does_not_say_what_it_cached() -> None:
    silent = replace(two_answers(), before=None, after=None)

    assert ids(silent, expected=Expected(0.0, 3)) == ["repeated-prompts"]
    assert ids(two_answers(), expected=Expected(0.0, 3)) == []


def test_unequal_work_between_two_servers() -> None:
    assert unequal_work([two_answers()], [two_answers()]) == []
    found = unequal_work([two_answers()], [two_answers(prompt_tokens=30)])
    assert [finding.id for finding in found] == ["unequal-work"]
    assert "20.0 against 30.0 prompt tokens" in found[0].text


def test_notes() -> None:
    preempted = replace(two_answers(), after=replace(AFTER, preemptions=4))
    assert "3 preemptions" in notes_of([preempted])[0]
    assert "20 tokens have 31 " in notes_of([two_answers(prompt_tokens=31)])[0]
    silent = replace(two_answers(), before=None, after=None)
    assert "counters cannot be read" in notes_of([silent])[0]


def test_amounts() -> None:
    assert Amount().num_for(Load("concurrency", 32)) == 128
    assert Amount().num_for(Load("rate", 2.5)) == 50
    assert Amount(num_prompts=7).num_for(Load("rate", 2.5)) == 7
    assert Amount(duration_s=3).num_for(LOAD) is None


@pytest.mark.parametrize("text", ["ttft", "ttft:x", "speed:5", ","])
def test_bad_slo(text: str) -> None:
    with pytest.raises(StokerError, match="--slo"):
        parse_slo(text)


def test_slo() -> None:
    assert parse_slo("ttft:500, e2e:9e3") == {"ttft": 500, "e2el": 9000}
    assert parse_slo(None) == {}


def point(rate: float, e2e: float, **changes: Any) -> dict[str, Any]:
    base = {"server": "s", "request_rate": rate, "median_e2el_ms": e2e, "failed": 0}
    return {
        **base,
        "refused": 0,
        "completed": 9,
        "request_throughput": rate,
        "request_goodput": 0,
        **changes,
    }


def test_the_knee_is_where_latency_has_not_yet_doubled() -> None:
    points = [point(4, 250), point(1, 100), point(2, 150), point(8, 120)]

    assert find_knees(points, has_slo=False) == [
        {"server": "s", "request_rate": 2, "is_beyond": False}
    ]


def test_the_knee_by_goodput() -> None:
    points = [point(1, 9, request_goodput=1), point(2, 9, request_goodput=1.7)]

    assert find_knees(points, has_slo=True)[0]["request_rate"] == 1
    assert find_knees(points[1:], has_slo=True)[0]["request_rate"] is None
    assert find_knees(points[:1], has_slo=True)[0]["is_beyond"]


def document(*scales: float, **workload: Any) -> dict[str, Any]:
    result = result_document([two_answers(scale) for scale in scales], {})
    return {
        "schema": "stoker.bench",
        "workload": {"prompt_tokens": "60", **workload},
        "results": [result],
        "findings": [],
    }


STEADY = (1.0, 1.01, 0.99)
SLOW = (2.0, 2.02, 1.98)
NOISY = (0.7, 3.0, 1.5)


@pytest.mark.parametrize(
    ("new", "code"), [(STEADY, 0), (SLOW, 1), (NOISY, 3), ((0.5, 0.505, 0.495), 0), ((2.0,), 3)]
)
def test_the_exit_code_of_compare(new: tuple[float, ...], code: int, tmp_path: Path) -> None:
    for name, scales in (("a", STEADY), ("b", new)):
        (tmp_path / name).write_text(json.dumps(document(*scales)))

    assert run(["bench", "compare", str(tmp_path / "a"), str(tmp_path / "b")]) == code


def test_a_loss_that_an_interval_may_hide_is_unclear() -> None:
    noisy = (0.9, 1.0, 1.1)

    report = compare(document(*noisy), document(*noisy), 0.05)
    assert {item.verdict for item in report.comparisons} == {"unclear"}
    assert compare(document(*noisy), document(*noisy), 0.5).exit_code == 0


def test_the_document_of_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, scales in (("a", STEADY), ("b", SLOW)):
        (tmp_path / name).write_text(json.dumps(document(*scales)))
    run(["bench", "compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json"])

    answer = json.loads(capsys.readouterr().out)
    verdicts = {item["figure"]: item["verdict"] for item in answer["comparisons"]}
    assert answer["schema"] == "stoker.bench.compare"
    assert verdicts["output_throughput"] == verdicts["median_ttft_ms"] == "worse"
    assert answer["comparisons"][0]["ratio"]["value"] == pytest.approx(0.5, rel=0.01)


def test_other_work_other_loads_and_findings_are_no_comparison() -> None:
    other = document(*STEADY, prompt_tokens="61")
    doubted = {**document(*STEADY), "findings": [{"id": "errors", "text": "x"}]}
    elsewhere = document(*STEADY)
    elsewhere["results"][0]["load"] = "rate 5/s"

    for new in (other, doubted, elsewhere):
        report = compare(document(*STEADY), new, 0.05)
        assert (report.exit_code, len(report.obstacles)) == (3, 1)


@pytest.mark.parametrize("arguments", [["a"], ["a", "b", "c"], ["none.json", "none.json"]])
def test_compare_wants_two_results(arguments: list[str]) -> None:
    assert run(["bench", "compare", *arguments]) == 2
