"""Curves of `stoker bench --json` files as a picture and as rows for a document.

    python -m tests.benchmarks.bench_curves A.json ... --picture docs/curves/streams.svg

The points of all files together are one curve for each server: over the streams at once where they
differ, else over the length of the prompts. Needs matplotlib, which nothing else here does.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FIGURES = (
    ("output_throughput", "output tokens a second"),
    ("median_ttft_ms", "TTFT p50, ms"),
    ("median_itl_ms", "ITL p50, ms"),
)
_COLOURS = ("#1f77b4", "#d95f02", "#7f7f7f")


@dataclass(frozen=True, slots=True)
class Point:
    """One server under one load."""

    streams: int
    prompt_tokens: int
    figures: Mapping[str, float]


def main() -> None:
    """Draw the picture, print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--picture", type=Path, required=True)
    options = parser.parse_args()
    curves = read_curves([json.loads(path.read_text()) for path in options.files])
    name, axis = axis_of(curves)
    draw(curves, name, axis, options.picture)
    for row in rows(curves, name):
        print("| " + " | ".join(row) + " |")


def read_curves(documents: Sequence[Mapping[str, Any]]) -> dict[str, list[Point]]:
    """The points of each server, by the engine that it runs."""
    curves: dict[str, list[Point]] = defaultdict(list)
    for document in documents:
        servers = document["fingerprint"]["servers"]
        engines = {server["url"]: server["engine"] or server["url"] for server in servers}
        for result in document["results"]:
            prompts = round(result["total_input_tokens"] / result["completed"])
            figures = {figure: result[figure] for figure, _ in _FIGURES}
            point = Point(result["max_concurrency"], prompts, figures)
            curves[engines[result["server"]]].append(point)
    return dict(curves)


def axis_of(curves: Mapping[str, Sequence[Point]]) -> tuple[str, str]:
    """The attribute of a point that the curve runs over, and its title."""
    if len({point.streams for points in curves.values() for point in points}) > 1:
        return "streams", "streams at once"
    return "prompt_tokens", "prompt tokens"


def rows(curves: Mapping[str, Sequence[Point]], name: str) -> list[list[str]]:
    """One row for each place on the axis, with the figures of each engine."""
    places = sorted({getattr(point, name) for points in curves.values() for point in points})
    found = []
    for place in places:
        row = [f"{place:,}"]
        for figure, _ in _FIGURES:
            values = [
                point.figures[figure]
                for points in curves.values()
                for point in points
                if getattr(point, name) == place
            ]
            row.append(" / ".join(f"{value:,.0f}" for value in values))
        found.append(row)
    return found


def draw(curves: Mapping[str, Sequence[Point]], name: str, axis: str, picture: Path) -> None:
    """One panel for each figure, both axes logarithmic: a straight line is a power law."""
    import matplotlib  # type: ignore[import-not-found,unused-ignore]

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "stoker"
    from matplotlib import pyplot  # type: ignore[import-not-found,unused-ignore]

    figure, panels = pyplot.subplots(1, len(_FIGURES), figsize=(12, 3.6))
    for panel, (key, title) in zip(panels, _FIGURES, strict=True):
        for (engine, points), colour in zip(curves.items(), _COLOURS, strict=False):
            ordered = sorted(points, key=lambda point: float(getattr(point, name)))
            xs = [getattr(point, name) for point in ordered]
            ys = [point.figures[key] for point in ordered]
            panel.plot(xs, ys, marker="o", color=colour, label=engine)
        panel.set(title=title, xlabel=axis, xscale="log", yscale="log")
        panel.grid(visible=True, which="major", alpha=0.3)
    panels[0].legend()
    figure.tight_layout()
    figure.savefig(picture, metadata={"Date": None})


if __name__ == "__main__":
    main()
