"""A benchmark's document as text: figures by load, latencies, ratios, the plot of a sweep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.bench.compare import ComparisonReport
from app.bench.report import LATENCIES

_BAR_WIDTH = 40
_TITLES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2E"}

Row = Sequence[str]


def text_report(document: Mapping[str, Any]) -> str:
    results = document["results"]
    blocks = [_header(document), _table(_rate_rows(results)), _table(_latency_rows(results))]
    if document["knees"]:
        blocks += [_plot(results, knee) for knee in document["knees"]]
    if document["ratios"]:
        blocks.append(_table(_ratio_rows(document["ratios"], results)))
    blocks += ["\n".join(f"note: {note}" for note in document["notes"])]
    blocks += ["\n".join(f"finding: {item['text']}" for item in document["findings"])]
    return "\n\n".join(block for block in blocks if block)


def plain_rows(document: Mapping[str, Any]) -> Iterator[Sequence[object]]:
    """Server, load, figure, value, ends of its 95 % interval."""
    for result in document["results"]:
        for name, value in result.items():
            if isinstance(value, (int, float)) or value is None:
                interval = result["intervals"].get(name) or {}
                row = (result["server"], result["load"], name, value)
                yield (*row, interval.get("low"), interval.get("high"))
    for knee in document["knees"]:
        yield (knee["server"], "sweep", "knee_request_rate", knee["request_rate"], None, None)
    for ratios in document["ratios"]:
        for name, ratio in ratios.items():
            if isinstance(ratio, dict):
                ends = (ratio["low"], ratio["high"])
                yield ("ratio", ratios["load"], name, ratio["value"], *ends)
    for item in document["findings"]:
        yield ("finding", "-", item["id"], item["text"], None, None)


def comparison_text(report: ComparisonReport) -> str:
    """One row for each load and figure: B over A."""
    rows = [("load", "figure", "B/A", "95 % interval", "verdict")]
    for item in report.comparisons:
        ratio = item.ratio
        interval = _interval(ratio.low, ratio.high, 3)
        rows.append((item.load, item.figure, f"{ratio.value:.3f}", interval, item.verdict))
    notes = [f"note: {note}" for note in report.notes]
    obstacles = [f"finding: {obstacle}" for obstacle in report.obstacles]
    return "\n".join([_table(rows), *notes, *obstacles])


def _header(document: Mapping[str, Any]) -> str:
    workload, machine = document["workload"], document["fingerprint"]
    servers = [
        f"{server['url']}: {server['engine'] or 'unknown engine'} {server['version'] or ''} "
        f"with {server['model_id']}"
        for server in machine["servers"]
    ]
    lines = [
        *servers,
        f"{_sent(workload)}, {workload['endpoint']}, {workload['repeats']} rounds, "
        f"--seed {workload['seed']}",
        f"client: {machine['cpu'] or 'unknown CPU'}, {machine['cores']} cores",
    ]
    return "\n".join(lines)


def _sent(workload: Mapping[str, Any]) -> str:
    """A trace has lengths and shared beginnings of its own."""
    if workload["trace"]:
        return f"the requests of {workload['trace']}"
    prompts = workload["dataset"] or f"prompts of {workload['prompt_tokens']} tokens"
    answers, share = workload["output_tokens"], workload["prefix_share"]
    return f"{prompts}, answers of {answers}, prefix share {share:g}"


def _rate_rows(results: Sequence[Mapping[str, Any]]) -> list[Row]:
    titles = ("load", "output tok/s", "95 % interval", "req/s", "goodput", "failed", "client CPU")
    has_refusals = any(result["refused"] for result in results)
    refused_title = ("refused",) if has_refusals else ()
    rows: list[Row] = [(*titles, *refused_title, *_server_column(results))]
    for result in results:
        interval = result["intervals"]["output_throughput"] or {}
        rows.append(
            (
                result["load"],
                f"{result['output_throughput']:.1f}",
                _interval(interval.get("low"), interval.get("high"), 1),
                f"{result['request_throughput']:.2f}",
                _number(result["request_goodput"], 2),
                _failures(result),
                f"{result['client_cpu_share']:.0%}",
                *((str(result["refused"]),) if has_refusals else ()),
                *_server_column(results, result),
            )
        )
    return rows


def _latency_rows(results: Sequence[Mapping[str, Any]]) -> list[Row]:
    rows: list[Row] = [("load", "ms", "mean", "p50", "p90", "p99", *_server_column(results))]
    for result in results:
        for kind in LATENCIES:
            values = (result[f"{part}_{kind}_ms"] for part in ("mean", "median", "p90", "p99"))
            numbers = (_number(value, 1) for value in values)
            server = _server_column(results, result)
            rows.append((result["load"], _TITLES[kind], *numbers, *server))
    return rows


def _ratio_rows(
    ratios: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]]
) -> list[Row]:
    first, second = list(dict.fromkeys(result["server"] for result in results))[:2]
    rows: list[Row] = [("load", f"ratio of {first} to {second}", "value", "95 % interval")]
    for part in ratios:
        for name, ratio in part.items():
            if isinstance(ratio, dict):
                interval = _interval(ratio["low"], ratio["high"], 3)
                rows.append((part["load"], name, f"{ratio['value']:.3f}", interval))
    return rows


def _plot(results: Sequence[Mapping[str, Any]], knee: Mapping[str, Any]) -> str:
    """A bar for each rate: the median end-to-end latency, and lighter up to the p99."""
    points = [r for r in results if r["server"] == knee["server"] and r["completed"]]
    longest = max((point["p99_e2el_ms"] for point in points), default=1.0)
    lines = [f"end-to-end latency by rate, {knee['server']} (solid p50, light to p99)"]
    for point in points:
        solid = round(_BAR_WIDTH * point["median_e2el_ms"] / longest)
        light = round(_BAR_WIDTH * point["p99_e2el_ms"] / longest) - solid
        bar = "█" * solid + "░" * light
        is_last_good = point["request_rate"] == knee["request_rate"]
        mark = (
            f"  <- {'no knee up to here' if knee['is_beyond'] else 'knee'}" if is_last_good else ""
        )
        value = f"{point['median_e2el_ms']:.0f} ms"
        lines.append(f"{point['request_rate']:>8g}/s {bar:<{_BAR_WIDTH}} {value}{mark}")
    if knee["request_rate"] is None:
        lines.append("no knee: the lowest rate is already too much")
    return "\n".join(lines)


def _server_column(
    results: Sequence[Mapping[str, Any]], result: Mapping[str, Any] | None = None
) -> tuple[str, ...]:
    """The server's name in a row, or its title; nothing where there is only one."""
    if len({part["server"] for part in results}) < 2:
        return ()
    return ("server",) if result is None else (result["server"],)


def _failures(result: Mapping[str, Any]) -> str:
    kinds = ", ".join(f"{n} x {kind}" for kind, n in result["errors"].items())
    return kinds or "0"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _interval(low: float | None, high: float | None, digits: int) -> str:
    return "-" if low is None or high is None else f"{low:.{digits}f} to {high:.{digits}f}"


def _table(rows: Sequence[Row]) -> str:
    """Columns as wide as their widest cell: text to the left, numbers to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (
            f"{cell:>{width}}" if _is_number_column(rows, i) else f"{cell:<{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _is_number_column(rows: Sequence[Row], index: int) -> bool:
    return all(row[index][:1].isdigit() or row[index] == "-" for row in rows[1:])
