"""Result files of other load generators, read into the figures that `stoker bench` has.

Only figures that mean the same are taken: a request's mean gap between tokens is TPOT here,
whatever a tool calls it, and the gap between two chunks is ITL. Each reader says what it left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.bench.round import Load

_MS = 1e3

Figures = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class OtherResult:
    """One load of another tool's run: `load` in our words, figures under our names."""

    load: str
    figures: Figures
    input_tokens: float | None  # of one request, on average
    output_tokens: float | None
    failed: int


@dataclass(frozen=True, slots=True)
class OtherRun:
    """A file of another tool. `meaning` says which of its figures stand under which name here."""

    tool: str
    meaning: str
    results: tuple[OtherResult, ...]


def read_other(document: Mapping[str, Any]) -> OtherRun | None:
    """The run in the JSON `document`; None when it is of no tool known here."""
    for recognised, read in _READERS:
        if recognised(document):
            run = read(document)
            return run if run.results else None
    return None


# ---- vllm bench serve --save-result ---------------------------------------------------------


def _is_vllm(document: Mapping[str, Any]) -> bool:
    return {"request_throughput", "output_throughput", "completed"} <= document.keys()


def _vllm(document: Mapping[str, Any]) -> OtherRun:
    completed = finite_number(document.get("completed"))
    names = ("ttft", "tpot", "itl", "e2el")
    figures: Figures = {
        "output_throughput": finite_number(document.get("output_throughput")),
        "request_throughput": finite_number(document.get("request_throughput")),
        **{f"median_{name}_ms": finite_number(document.get(f"median_{name}_ms")) for name in names},
    }
    wanted = finite_number(document.get("num_prompts")) or completed or 0
    result = OtherResult(
        _load(document.get("max_concurrency"), document.get("request_rate")),
        figures,
        per_request(document.get("total_input_tokens"), completed),
        per_request(document.get("total_output_tokens"), completed),
        max(0, int(finite_number(document.get("failed")) or wanted - (completed or 0))),
    )
    meaning = "its figures mean what ours do; its TTFT counts from the sending, not from due"
    return OtherRun("vllm bench serve", meaning, (result,))


# ---- guidellm -------------------------------------------------------------------------------


def _is_guidellm(document: Mapping[str, Any]) -> bool:
    return isinstance(document.get("benchmarks"), list)


def _guidellm(document: Mapping[str, Any]) -> OtherRun:
    found = [one for one in document["benchmarks"] if isinstance(one, Mapping)]
    results = tuple(_guidellm_result(one) for one in found if isinstance(one.get("metrics"), dict))
    meaning = (
        "its inter_token_latency is a request's mean and stands as TPOT; its time_per_output_token "
        "counts the first token and is left out"
    )
    return OtherRun("guidellm", meaning, results)


def _guidellm_result(benchmark: Mapping[str, Any]) -> OtherResult:
    metrics = benchmark["metrics"]

    def successful(name: str, statistic: str) -> float | None:
        return finite_number(_at(metrics, name, "successful", statistic))

    latency = successful("request_latency", "median")
    strategy = _at(benchmark, "config", "strategy") or _at(benchmark, "args", "strategy") or {}
    streams = 1 if _at(strategy, "type_") == "synchronous" else _at(strategy, "streams")
    return OtherResult(
        _load(streams, _at(strategy, "rate")),
        {
            "output_throughput": successful("output_tokens_per_second", "mean"),
            "request_throughput": successful("requests_per_second", "mean"),
            "median_ttft_ms": successful("time_to_first_token_ms", "median"),
            "median_tpot_ms": successful("inter_token_latency_ms", "median"),
            "median_e2el_ms": None if latency is None else latency * _MS,
        },
        successful("prompt_token_count", "mean"),
        successful("output_token_count", "mean"),
        int(finite_number(_at(metrics, "request_totals", "errored")) or 0),
    )


# ---- aiperf, and genai-perf before it ---------------------------------------------------------


def _is_aiperf(document: Mapping[str, Any]) -> bool:
    return isinstance(_at(document, "request_latency", "unit"), str)


def _aiperf(document: Mapping[str, Any]) -> OtherRun:
    def value(name: str, statistic: str = "avg") -> float | None:
        found = finite_number(_at(document, name, statistic))
        scale = _TO_MS.get(str(_at(document, name, "unit")), 1.0)
        return None if found is None else found * scale

    settings = document.get("input_config")
    result = OtherResult(
        _load(_anywhere(settings, "concurrency"), _anywhere(settings, "request_rate", "rate")),
        {
            "output_throughput": value("output_token_throughput"),
            "request_throughput": value("request_throughput"),
            "median_ttft_ms": value("time_to_first_token", "p50"),
            "median_tpot_ms": value("inter_token_latency", "p50"),
            "median_itl_ms": value("inter_chunk_latency", "p50"),
            "median_e2el_ms": value("request_latency", "p50"),
        },
        value("input_sequence_length"),
        value("output_sequence_length"),
        int(value("error_request_count") or 0),
    )
    meaning = (
        "its inter_token_latency is a request's mean and stands as TPOT, its inter_chunk_latency "
        "as ITL (of genai-perf: not known)"
    )
    return OtherRun("aiperf", meaning, (result,))


_TO_MS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "sec": _MS, "s": _MS, "seconds": _MS}

_Reader = tuple[Callable[[Mapping[str, Any]], bool], Callable[[Mapping[str, Any]], OtherRun]]
_READERS: tuple[_Reader, ...] = (
    (_is_guidellm, _guidellm),
    (_is_aiperf, _aiperf),
    (_is_vllm, _vllm),
)


def _load(streams: object, rate: object) -> str:
    """In our words: streams at once, arrivals a second, or everything at once."""
    per_second, at_once = finite_number(rate), finite_number(streams)
    if per_second:
        return str(Load("rate", per_second))
    return str(Load("concurrency", at_once)) if at_once else "all at once"


def _at(value: Any, *names: str) -> Any:
    """What lies under `names`, one inside the other; None where one is missing."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def finite_number(value: object) -> float | None:
    """A finite number; None for anything else, "inf" among it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def per_request(total: object, requests: object) -> float | None:
    """The mean of one request; None where either is no number, or there was none."""
    number, count = finite_number(total), finite_number(requests)
    return None if number is None or not count else number / count


def _anywhere(value: Any, *names: str) -> float | None:
    """The first number above 0 under one of `names`, however deep."""
    return next((found for found in map(finite_number, _values(value, names)) if found), None)


def _values(value: Any, names: tuple[str, ...]) -> Iterator[object]:
    parts: Any = value.items() if isinstance(value, Mapping) else ()
    if isinstance(value, list):
        parts = ((None, part) for part in value)
    for name, part in parts:
        if name in names:
            yield part
        yield from _values(part, names)
