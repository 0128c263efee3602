"""Compares two saved results of `stoker bench`: better, worse, or not enough evidence."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.bench.report import COMPARED, estimate_document
from app.bench.statistics import Estimate, unpaired_ratio
from app.errors import ExitCode, StokerError, UsageError

SCHEMA = "stoker.bench"
# What must be equal for two results to be of the same work.
_SAME = ("endpoint", "prompt_tokens", "output_tokens", "prefix_share", "dataset_sha256")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure under one load: B over A. `verdict` is same, better, worse or unclear."""

    load: str
    figure: str
    ratio: Estimate
    verdict: str

    def document(self) -> dict[str, Any]:
        ratio = estimate_document(self.ratio)
        return {
            "load": self.load,
            "figure": self.figure,
            "ratio": ratio,
            "verdict": self.verdict,
        }


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    """All comparisons, and why the two files cannot be compared, if so."""

    comparisons: tuple[Comparison, ...]
    obstacles: tuple[str, ...]

    @property
    def exit_code(self) -> ExitCode:
        """0 no worse, 1 worse, 3 not to be told."""
        verdicts = {item.verdict for item in self.comparisons}
        if self.obstacles or not verdicts:
            return ExitCode.NOT_ENOUGH_EVIDENCE
        if "worse" in verdicts:
            return ExitCode.NO
        return ExitCode.NOT_ENOUGH_EVIDENCE if "unclear" in verdicts else ExitCode.OK


def compare_files(old: Path, new: Path, tolerance: float) -> ComparisonReport:
    """Compare B (`new`) with A (`old`); a loss of up to `tolerance` is accepted."""
    documents = [_read(old), _read(new)]
    return compare(documents[0], documents[1], tolerance)


def compare(old: Mapping[str, Any], new: Mapping[str, Any], tolerance: float) -> ComparisonReport:
    obstacles = [
        f"the {name} differ: {old['workload'].get(name)} and {new['workload'].get(name)}"
        for name in _SAME
        if old["workload"].get(name) != new["workload"].get(name)
    ]
    obstacles += [
        f"{side} has a finding: {finding['text']}"
        for side, document in (("A", old), ("B", new))
        for finding in document["findings"]
    ]
    pairs = [
        (before, after)
        for before in _first_server(old)
        for after in _first_server(new)
        if before["load"] == after["load"]
    ]
    if not pairs:
        obstacles.append("they have no load in common")
    found = (
        _compared(before, after, figure, tolerance)
        for before, after in pairs
        for figure in COMPARED
    )
    return ComparisonReport(tuple(item for item in found if item), tuple(obstacles))


def _first_server(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The results of the server that was measured; those of --vs are another story."""
    results: Sequence[Mapping[str, Any]] = document["results"]
    return [result for result in results if result["server"] == results[0]["server"]]


def _compared(
    old: Mapping[str, Any], new: Mapping[str, Any], figure: str, tolerance: float
) -> Comparison | None:
    before, after = (
        [part[figure] for part in result["rounds"] if part[figure] is not None]
        for result in (old, new)
    )
    ratio = unpaired_ratio(after, before)
    if ratio is None:
        return None
    is_throughput = figure.endswith("throughput")
    return Comparison(old["load"], figure, ratio, _verdict(ratio, is_throughput, tolerance))


def _verdict(ratio: Estimate, is_throughput: bool, tolerance: float) -> str:
    """Told only where the whole 95 % interval lies on one side of a loss of `tolerance`."""
    if ratio.low is None or ratio.high is None:
        return "unclear"
    ends = (ratio.low, ratio.high) if is_throughput else (1 / ratio.high, 1 / ratio.low)
    limit = 1 + tolerance
    if ends[1] < 1 / limit:
        return "worse"
    if ends[0] > limit:
        return "better"
    return "same" if ends[0] >= 1 / limit else "unclear"


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unreadable(path, str(error)) from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise _unreadable(path, f"it is no {SCHEMA} document")
    return document


def _unreadable(path: Path, why: str) -> StokerError:
    return UsageError(
        f"cannot read the result {path}: {why}",
        hint="write one with `stoker bench --json > A.json`",
    )
