"""More collected logs, by the rules of their README: outcome, values, the line that names the
cause, and what the answer should say or not say beside them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from logparse import explain, to_document
from tests.logparse.shared_logs import (
    MORE_LOGS,
    Score,
    all_scores,
    expected_of,
    is_same,
    is_same_text,
    print_scores,
    report_of,
)

VALUES = (
    "weights_gib",
    "kv_memory_gib",
    "kv_tokens",
    "max_concurrency",
    "max_model_len",
    "compile_s",
    "graph_gib",
    "engine_init_s",
    "ready_url",
)

pytestmark = pytest.mark.skipif(not MORE_LOGS.is_dir(), reason="the collected logs are not here")


def score_outcome(path: Path) -> Score:
    score = Score()
    expected, found = expected_of(path)["outcome"], report_of(path).outcome.value
    score.count(expected == found, f"{expected} read as {found}")
    return score


def score_values(path: Path) -> Score:
    """Those that the log holds count; one that it does not hold must not be there."""
    score, expected, found = Score(), expected_of(path), to_document(report_of(path))
    for key in VALUES:
        if expected[key] is not None:
            wrong = f"{key}: {expected[key]!r} read as {found[key]!r}"
            score.count(is_same(expected[key], found[key]), wrong)
        elif found[key] is not None:
            score.wrong.append(f"{key}: invented {found[key]!r}")
    return score


def score_cause(path: Path) -> Score:
    score, expected, found = Score(), expected_of(path), to_document(report_of(path))
    wanted = expected["key_line"], expected["key_line_no"]
    shown = found["key_line"], found["key_line_no"]
    is_right = is_same_text(wanted[0], shown[0]) and wanted[1] == shown[1]
    if wanted[0] is not None:
        score.count(is_right, f"{wanted!r} read as {shown!r}")
    elif shown[0] is not None:
        score.wrong.append(f"invented {shown!r}")
    return score


def score_rest(path: Path) -> Score:
    """Engine, version, processes where prefixes name them, and `also`."""
    score, expected, found = Score(), expected_of(path), to_document(report_of(path))
    for key in ("engine", "engine_version"):
        if expected[key] is not None or found[key] is not None:
            wrong = f"{key}: {expected[key]!r} read as {found[key]!r}"
            score.count(expected[key] == found[key], wrong)
    missing = [name for name in expected["processes"] if name not in found["processes"]]
    if expected["processes"]:
        score.count(not missing, f"processes: {missing!r} not in {found['processes']!r}")
    also, text = expected.get("also", {}), explain(report_of(path)).text()
    if "platform" in also:
        wrong = f"platform: {also['platform']!r} read as {found['platform']!r}"
        score.count(also["platform"] == found["platform"], wrong)
    if "ready_after_s" in also:
        shown = found["first_to_ready_s"]
        is_right = shown is not None and abs(shown - also["ready_after_s"]) <= 1
        score.count(is_right, f"ready after {also['ready_after_s']} s read as {shown}")
    if "attempts" in also:
        num_starts = len(found["attempts"]) or 1
        score.count(also["attempts"] == num_starts, f"starts: {also['attempts']}, {num_starts}")
    if "cause_named" in also:
        is_named = found["cause_id"] not in (None, "unknown")
        score.count(also["cause_named"] == is_named, f"the cause is called {found['cause_id']}")
    for pattern in _listed(also.get("text", ())):
        score.count(re.search(pattern, text) is not None, f"text without {pattern}")
    for pattern in _listed(also.get("not_text", ())):
        score.count(re.search(pattern, text) is None, f"text with {pattern}")
    return score


def _listed(patterns: str | list[str] | tuple[str, ...]) -> list[str]:
    return [patterns] if isinstance(patterns, str) else list(patterns)


@pytest.mark.parametrize(
    ("what", "score_file"),
    [
        ("outcomes", score_outcome),
        ("values", score_values),
        ("cause lines", score_cause),
        ("other answers", score_rest),
    ],
)
def test_more_logs(
    what: str, score_file: Callable[[Path], Score], capsys: pytest.CaptureFixture[str]
) -> None:
    scores = all_scores(MORE_LOGS, score_file)
    with capsys.disabled():
        print_scores({name: score for name, score in scores.items() if score.wrong}, "of these")
        right, asked = sum(s.right for s in scores.values()), sum(s.total for s in scores.values())
        print(f"  {what}: {right}/{asked}")
    assert len(scores) >= 39
    assert {name: score.wrong for name, score in scores.items() if score.wrong} == {}
