from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.bench.run import is_saturated
from app.bench.saved import require_same_work, saved_result, write_result
from app.errors import UsageError

PARTS: dict[str, Any] = {name: [] for name in ("results", "ratios", "findings", "notes", "loads")}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert saved_result(path) is None

    write_result(path, {**PARTS, "workload": {"seed": 3}})
    found = saved_result(path)
    assert found is not None
    assert found["workload"] == {"seed": 3}
    assert [one.name for one in tmp_path.iterdir()] == ["a.json"]


def document(**changes: Any) -> str:
    return json.dumps({"schema": "stoker.bench", "workload": {"seed": 3}, **PARTS, **changes})


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "{}", '{"schema": "stoker.bench"}', "notes"),
        *(document(workload=[]), document(workload={}), document(workload={"seed": "a"})),
        *(document(results=[3]), document(loads=[3]), document(notes=None)),
        document(findings=["late"]),
    ],
)
def test_another_file_is_left_as_it_is(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)

    with pytest.raises(UsageError, match="--save"):
        saved_result(path)
    assert path.read_text() == content


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    with pytest.raises(UsageError, match="its folder is not there"):
        saved_result(tmp_path / "none" / "a.json")


def test_another_run_is_refused_with_the_difference(tmp_path: Path) -> None:
    saved = {"workload": {"seed": 3, "prompt_tokens": "60"}}

    require_same_work(tmp_path, saved, {"seed": 4, "prompt_tokens": "60"})
    with pytest.raises(UsageError, match="its prompt_tokens is 60, asked is 61"):
        require_same_work(tmp_path, saved, {"seed": 3, "prompt_tokens": "61"})


def point(rate: float, throughput: float, e2e: float, high: float | None = None) -> dict[str, Any]:
    return {
        "server": "s",
        "request_rate": rate,
        "request_throughput": throughput,
        "median_e2el_ms": e2e,
        "failed": 0,
        "refused": 0,
        "completed": 9,
        "intervals": {"request_throughput": {"high": high}},
    }


def test_a_sweep_is_over_when_more_requests_bring_no_more_answers() -> None:
    points = [point(1, 1, 100), point(2, 2, 120), point(4, 3, 500), point(5, 3.1, 900)]

    assert not is_saturated(points, has_slo=False)  # 3.1 is more than 3
    points[2]["intervals"]["request_throughput"]["high"] = 3.2
    assert is_saturated(points, has_slo=False)
    assert not is_saturated(points[:3], has_slo=False)
    assert json.loads(json.dumps(points)) == points


def test_a_first_rate_without_answers_ends_no_sweep() -> None:
    nothing: dict[str, Any] = {**point(1, 0, 0), "completed": 0, "median_e2el_ms": None}
    points = [nothing, point(2, 2, 120), point(4, 2, 500)]
    assert not is_saturated(points, has_slo=False)
