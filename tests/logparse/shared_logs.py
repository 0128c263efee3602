"""Collected logs of other people's servers, read in place, and how an answer is scored.

The logs stay outside the repository (their README says why); tests are skipped without them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from logparse import LogReport, parse_lines
from logparse.reading.source import decoded_lines
from tests.places import SHARED

LOGS = SHARED / "logs"
MORE_LOGS = SHARED / "more-logs"


@dataclass
class Score:
    """What of one log was read right, and what was not."""

    right: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """How much was asked."""
        return self.right + len(self.wrong)

    def count(self, is_right: bool, wrong: str) -> None:
        """One answer; `wrong` says what is not right about it."""
        if is_right:
            self.right += 1
        else:
            self.wrong.append(wrong)


@functools.cache
def report_of(path: Path) -> LogReport:
    """What is read of the file, as `stoker logs` reads it."""
    with path.open("rb") as stream:
        return parse_lines(decoded_lines(stream))


@functools.cache
def lines_of(path: Path) -> tuple[str, ...]:
    """All with a newline, so that they can be joined."""
    with path.open("rb") as stream:
        return tuple(line.rstrip("\n") + "\n" for line in decoded_lines(stream))


def expected_of(path: Path) -> dict[str, Any]:
    """The right values, read by eye."""
    expected: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())
    return expected


def is_same(expected: Any, found: Any) -> bool:
    """Equal, but for the rounding of fractions."""
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(is_same, expected, found))
    if isinstance(expected, int | float) and isinstance(found, int | float):
        return abs(expected - found) < 1e-6
    return bool(expected == found)


def is_same_text(expected: str | None, found: str | None) -> bool:
    """Whether one holds the other; a line that is shown may be cut."""
    if expected is None or found is None:
        return expected is found
    return expected in found or found in expected


def print_scores(scores: dict[str, Score], what: str = "") -> None:
    """A table: each log with what is wrong about it, and the sum."""
    print()
    for name, score in scores.items():
        print(f"  {score.right:2}/{score.total:2}  {name}")
        for wrong in score.wrong:
            print(f"         {wrong[:220]}")
    print(
        f"  {sum(s.right for s in scores.values())}/{sum(s.total for s in scores.values())} {what}"
    )


def all_scores(folder: Path, score_file: Callable[[Path], Score]) -> dict[str, Score]:
    """Of every log in the folder, by name."""
    return {path.name: score_file(path) for path in sorted(folder.glob("*.log"))}
