"""Real logs of other people's servers, read in place: every value right and none invented."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from logparse import to_document
from tests.logparse.shared_logs import (
    LOGS,
    Score,
    all_scores,
    expected_of,
    is_same,
    is_same_text,
    print_scores,
    report_of,
)

KEYS = (
    "outcome",
    "engine",
    "engine_version",
    "weights_gib",
    "kv_memory_gib",
    "kv_tokens",
    "kv_blocks",
    "kv_tokens_derived",
    "max_concurrency",
    "max_model_len",
    "requested_max_model_len",
    "compile_s",
    "graph_gib",
    "engine_init_s",
    "ready_url",
    "processes",
    "root_cause",
    "key_line",
    "key_line_no",
    "attempts",
)

pytestmark = pytest.mark.skipif(not LOGS.is_dir(), reason="the collected logs are not here")


def is_right(key: str, expected: Any, found: Any) -> bool:
    if key == "root_cause":  # the wording is ours; that there is one is what can be compared
        return (expected is None) == (found is None)
    if key == "key_line":
        return is_same_text(expected, found)
    if key == "attempts":
        return len(expected) == len(found) and all(
            e["outcome"] == f["outcome"]
            and (e["outcome"] != "failed" or e["key_line_no"] == f["key_line_no"])
            for e, f in zip(expected, found, strict=True)
        )
    return is_same(expected, found)


def score_file(path: Path) -> Score:
    expected = expected_of(path)
    found = to_document(report_of(path))
    score = Score()
    for key in KEYS:
        if key not in expected:
            if key in ("kv_blocks", "kv_tokens_derived") and found[key] is not None:
                score.wrong.append(f"{key}: invented {found[key]!r}")
            continue
        # The README of the logs names one value that may be null as well.
        may_be_null = "null is also right" in expected.get("notes", "")
        score.count(
            is_right(key, expected[key], found[key])
            or (key == "engine_version" and found[key] is None and may_be_null),
            f"{key}: {expected[key]!r} read as {found[key]!r}",
        )
    return score


def test_every_value_is_right_and_none_invented(capsys: pytest.CaptureFixture[str]) -> None:
    scores = all_scores(LOGS, score_file)
    with capsys.disabled():
        print_scores(scores)
    assert len(scores) >= 34
    assert {name: score.wrong for name, score in scores.items() if score.wrong} == {}
