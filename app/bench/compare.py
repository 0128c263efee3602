"""Compares two saved results: better, worse, or not enough evidence.

A side is a file of `stoker bench`, or of another tool; several files of one side are its rounds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.bench.other_tools import OtherRun, finite_number, per_request, read_other
from app.bench.report import COMPARED, estimate_document
from app.bench.statistics import Estimate, unpaired_ratio
from app.errors import ExitCode, StokerError, UsageError

SCHEMA = "stoker.bench"
# What must be equal for two results to be of the same work.
_SAME = (
    *("endpoint", "prompt_tokens", "output_tokens", "prefix_share", "turns"),
    *("dataset_sha256", "trace_sha256"),
)
_TOKEN_TOLERANCE = 0.01


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
    """All comparisons, why the two sides cannot be compared, if so, and what figures mean."""

    comparisons: tuple[Comparison, ...]
    obstacles: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """0 no worse, 1 worse, 3 not to be told."""
        verdicts = {item.verdict for item in self.comparisons}
        if self.obstacles or not verdicts:
            return ExitCode.NOT_ENOUGH_EVIDENCE
        if "worse" in verdicts:
            return ExitCode.NO
        return ExitCode.NOT_ENOUGH_EVIDENCE if "unclear" in verdicts else ExitCode.OK


def compare_files(old: str, new: str, tolerance: float) -> ComparisonReport:
    """Compare B (`new`) with A (`old`); a loss of up to `tolerance` is accepted.

    Each is a path, or several with commas between, whose figures are taken as rounds.
    """
    return compare(_side(old), _side(new), tolerance)


def compare(old: Mapping[str, Any], new: Mapping[str, Any], tolerance: float) -> ComparisonReport:
    """Compare two documents of `stoker bench`, or what `_side` made of another tool's files."""
    sides = (("A", old), ("B", new))
    obstacles = [
        f"{side} has a finding: {finding['text']}"
        for side, document in sides
        for finding in document["findings"]
    ]
    is_foreign = any("tool" in document for _, document in sides)
    if not is_foreign:
        obstacles = _other_work(old["workload"], new["workload"]) + obstacles
    pairs = [
        (before, after)
        for before in _first_server(old)
        for after in _first_server(new)
        if before["load"] == after["load"]
    ]
    if not pairs:
        loads = (sorted({part["load"] for part in _first_server(one)}) for _, one in sides)
        obstacles.append(
            "they have no load in common: {} and {}".format(*(", ".join(part) for part in loads))
        )
    if is_foreign:
        obstacles += [text for before, after in pairs for text in _other_lengths(before, after)]
    found = (
        _compared(before, after, figure, tolerance)
        for before, after in pairs
        for figure in COMPARED
    )
    notes = tuple(f"{side} is of {one['tool']}" for side, one in sides if "tool" in one)
    return ComparisonReport(tuple(item for item in found if item), tuple(obstacles), notes)


def _other_work(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return [
        f"the {name} differ: {old.get(name)} and {new.get(name)}"
        for name in _SAME
        if name in old and name in new and old[name] != new[name]
    ]


def _other_lengths(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Tokens of a request, which is all that can be compared of the work of two tools."""
    for what in ("input", "output"):
        before, after = (
            per_request(result.get(f"total_{what}_tokens"), result.get("completed"))
            for result in (old, new)
        )
        if before is None or after is None:
            yield f"{old['load']}: one side does not say how many {what} tokens a request has"
        elif abs(before - after) > _TOKEN_TOLERANCE * max(before, after):
            yield f"{old['load']}: {before:.1f} and {after:.1f} {what} tokens a request"


def _first_server(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The results of the server that was measured; those of --vs are another story."""
    results: Sequence[Mapping[str, Any]] = document["results"]
    return [result for result in results if result["server"] == results[0]["server"]]


def _compared(
    old: Mapping[str, Any], new: Mapping[str, Any], figure: str, tolerance: float
) -> Comparison | None:
    before, after = (
        [
            value
            for part in result["rounds"]
            if (value := finite_number(part.get(figure))) is not None
        ]
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


def _side(word: str) -> dict[str, Any]:
    """The document of one side, its files merged."""
    # Path.exists raises for what is longer than a name may be.
    paths = [Path(word)] if os.path.exists(word) else [Path(part) for part in word.split(",")]
    documents = [_read(path) for path in paths]
    if len({document.get("tool") for document in documents}) > 1:
        raise _unreadable(word, "its files are of different tools")
    merged = documents[0]
    for path, document in zip(paths[1:], documents[1:], strict=True):
        if others := _other_work(merged.get("workload", {}), document.get("workload", {})):
            raise _unreadable(path, f"its work is not that of {paths[0]}: {others[0]}")
        merged = _merged(merged, document)
    return merged


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Both documents' rounds under each load that both have."""
    by_load = {result["load"]: result for result in _first_server(other)}
    results = [
        {**result, "rounds": [*result["rounds"], *by_load[result["load"]]["rounds"]]}
        for result in _first_server(one)
        if result["load"] in by_load
    ]
    return {**one, "results": results, "findings": [*one["findings"], *other["findings"]]}


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, str(error)) from error
    if isinstance(document, dict) and document.get("schema") == SCHEMA:
        if not is_whole(document):
            raise _unreadable(path, "parts of it are missing")
        return document
    run = read_other(document) if isinstance(document, dict) else None
    if run is None:
        raise _unreadable(
            path, f"it is no {SCHEMA} document, nor of vllm bench serve, guidellm or aiperf"
        )
    return _document(run)


def is_whole(document: Mapping[str, Any]) -> bool:
    """Whether what results are compared by is there, of a document with our schema."""
    workload, findings, results = (
        document.get(name) for name in ("workload", "findings", "results")
    )
    return (
        isinstance(workload, dict)
        and isinstance(findings, list)
        and all(isinstance(one, dict) and "text" in one for one in findings)
        and isinstance(results, list)
        and all(map(_is_result, results))
    )


def _is_result(result: object) -> bool:
    return (
        isinstance(result, dict)
        and isinstance(result.get("load"), str)
        and "server" in result
        and isinstance(result.get("rounds"), list)
        and all(isinstance(part, dict) for part in result["rounds"])
    )


def _document(run: OtherRun) -> dict[str, Any]:
    """Another tool's run in the shape of ours: each result is one round."""
    results = [
        {
            "server": run.tool,
            "load": result.load,
            "rounds": [result.figures],
            "total_input_tokens": result.input_tokens,
            "total_output_tokens": result.output_tokens,
            "completed": 1,  # the tokens above are of one request
        }
        for result in run.results
    ]
    failures = [
        {"id": "errors", "text": f"{result.load}: {result.failed} requests failed"}
        for result in run.results
        if result.failed
    ]
    return {"tool": f"{run.tool}: {run.meaning}", "results": results, "findings": failures}


def _unreadable(path: Path | str, why: str) -> StokerError:
    return UsageError(
        f"cannot read the result {path}: {why}",
        hint="write one with `stoker bench --json > A.json`, or with --save-result of vLLM's bench",
    )
