"""Real logs of other people's servers, read in place: every value right and none invented.

The logs stay outside the repository (their README says why); without the folder the test is
skipped.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from logparse import LogParser, to_document
from logparse.source import decoded_lines

LOGS = Path(__file__).parents[3] / "shared" / "logs"
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


@dataclass
class Score:
    right: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.right + len(self.wrong)


def read(path: Path) -> dict[str, Any]:
    parser = LogParser()
    with path.open("rb") as stream:
        for line in decoded_lines(stream):
            parser.feed(line)
    return to_document(parser.report())


def is_right(key: str, expected: Any, found: Any) -> bool:
    if key == "root_cause":  # the wording is ours; that there is one is what can be compared
        return (expected is None) == (found is None)
    if key == "key_line":
        if expected is None or found is None:
            return expected is found
        return bool(expected in found or found in expected)
    if key == "attempts":
        return len(expected) == len(found) and all(
            e["outcome"] == f["outcome"]
            and (e["outcome"] != "failed" or e["key_line_no"] == f["key_line_no"])
            for e, f in zip(expected, found, strict=True)
        )
    if isinstance(expected, float) and isinstance(found, float):
        return abs(expected - found) < 1e-6
    return bool(expected == found)


def score_file(path: Path) -> Score:
    expected = json.loads(path.with_suffix(".json").read_text())
    found = read(path)
    score = Score()
    for key in KEYS:
        if key not in expected:
            if key in ("kv_blocks", "kv_tokens_derived") and found[key] is not None:
                score.wrong.append(f"{key}: invented {found[key]!r}")
            continue
        # The README of the logs names one value that may be null as well.
        if is_right(key, expected[key], found[key]) or (
            key == "engine_version"
            and found[key] is None
            and "null is also right" in expected.get("notes", "")
        ):
            score.right += 1
        else:
            score.wrong.append(f"{key}: {expected[key]!r} read as {found[key]!r}")
    return score


def all_scores() -> dict[str, Score]:
    return {path.name: score_file(path) for path in sorted(LOGS.glob("*.log"))}


def test_every_value_is_right_and_none_invented(capsys: pytest.CaptureFixture[str]) -> None:
    scores = all_scores()
    with capsys.disabled():
        print()
        for name, score in scores.items():
            print(f"  {score.right:2}/{score.total:2}  {name}")
            for wrong in score.wrong:
                print(f"         {wrong[:220]}")
        print(f"  {sum(s.right for s in scores.values())}/{sum(s.total for s in scores.values())}")
    assert len(scores) >= 34
    assert {name: score.wrong for name, score in scores.items() if score.wrong} == {}
