"""From rounds to figures: one result for each server and load, named as `vllm bench serve` names.

Throughputs are means over the rounds, latencies are over all requests of all rounds. TTFT and E2E
count from the moment a request was due, so a client that falls behind hides nothing.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from app.bench.round import Round
from app.bench.statistics import Estimate, mean_estimate, paired_ratio, percentile
from app.bench.stream import RequestResult
from app.client.metrics.sample import rates_between
from app.errors import UsageError

LATENCIES = ("ttft", "tpot", "itl", "e2el")
# What rounds are compared by; a throughput is better when higher, a latency when lower.
COMPARED = (
    *("output_throughput", "request_throughput"),
    *(f"median_{name}_ms" for name in LATENCIES),
)
_SLO_NAMES = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2el", "e2el": "e2el"}


@dataclass(frozen=True, slots=True)
class RequestLatencies:
    """Latencies of one answered request in milliseconds."""

    ttft: float
    e2el: float
    tpot: float | None  # None for an answer of one token
    itl: tuple[float, ...]


def parse_slo(text: str | None) -> dict[str, float]:
    """`ttft:500,tpot:50` as limits in milliseconds."""
    limits = {}
    for part in (text or "").split(",") if text else ():
        name, _, value = part.partition(":")
        try:
            limit = limits[_SLO_NAMES[name.strip()]] = float(value)
            if not 0 < limit < float("inf"):
                raise ValueError(value)
        except (KeyError, ValueError) as error:
            raise UsageError(
                f"--slo {text}: {part!r} is not NAME:MILLISECONDS with ttft, tpot or e2el",
                hint="for example: --slo ttft:500,tpot:50",
            ) from error
    return limits


def request_times(outcome: RequestResult) -> RequestLatencies:
    """The latencies of an answer without error."""
    first, last = outcome.chunks_s[0], outcome.chunks_s[-1]
    later = num_output_tokens(outcome) - 1
    return RequestLatencies(
        ttft=(first - outcome.due_s) * 1e3,
        e2el=(last - outcome.due_s) * 1e3,
        tpot=(last - first) * 1e3 / later if later > 0 else None,
        itl=tuple((after - before) * 1e3 for before, after in pairwise(outcome.chunks_s)),
    )


def num_output_tokens(outcome: RequestResult) -> int:
    """By the server's own count, else one for each chunk."""
    return len(outcome.chunks_s) if outcome.output_tokens is None else outcome.output_tokens


def answered(round_: Round) -> list[RequestResult]:
    return [outcome for outcome in round_.outcomes if outcome.error is None]


def failed(outcomes: Iterable[RequestResult]) -> list[RequestResult]:
    """Those that should have been answered; a refused one knows that it was not."""
    return [outcome for outcome in outcomes if outcome.error and not outcome.is_refused]


def result_document(rounds: Sequence[Round], slo: Mapping[str, float]) -> dict[str, Any]:
    """The result of all rounds of one server under one load."""
    per_round = [_figures([round_], slo) for round_ in rounds]
    pooled = _figures(rounds, slo)
    rates = ("request_throughput", "request_goodput", "output_throughput", "total_token_throughput")
    means = {name: _mean(per_round, name) for name in rates}
    load = rounds[0].load
    return {
        "server": rounds[0].target.url,
        "model_id": rounds[0].target.model,
        "load": str(load),
        "max_concurrency": int(load.value) if load.kind == "concurrency" else None,
        "request_rate": load.value if load.kind == "rate" else None,
        **pooled,
        **{name: None if mean is None else mean.value for name, mean in means.items()},
        "intervals": {
            name: estimate_document(_mean(per_round, name)) for name in (*rates, *COMPARED[2:])
        },
        "rounds": per_round,
    }


def ratio_documents(
    ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> dict[str, dict[str, Any] | None]:
    """Our figure over theirs for each compared one, over rounds that alternated."""
    return {name: estimate_document(_ratio(ours, theirs, name)) for name in COMPARED}


def estimate_document(estimate: Estimate | None) -> dict[str, Any] | None:
    """The JSON form of an estimate."""
    if estimate is None:
        return None
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high, "n": estimate.n}


def _ratio(ours: Mapping[str, Any], theirs: Mapping[str, Any], name: str) -> Estimate | None:
    pairs = [
        (a[name], b[name])
        for a, b in zip(ours["rounds"], theirs["rounds"], strict=True)
        if a[name] is not None and b[name] is not None
    ]
    return paired_ratio([a for a, _ in pairs], [b for _, b in pairs])


def _mean(figures: Sequence[Mapping[str, Any]], name: str) -> Estimate | None:
    values = [part[name] for part in figures if part[name] is not None]
    return mean_estimate(values) if values else None


def _figures(rounds: Sequence[Round], slo: Mapping[str, float]) -> dict[str, Any]:
    """The figures of some rounds taken together."""
    outcomes = [outcome for round_ in rounds for outcome in round_.outcomes]
    done = [outcome for outcome in outcomes if outcome.error is None]
    refused = [outcome for outcome in outcomes if outcome.is_refused]
    lost = failed(outcomes)
    times = [request_times(outcome) for outcome in done]
    duration = sum(round_.duration_s for round_ in rounds)
    tokens_in = sum(
        outcome.prompt_tokens or outcome.expected_prompt_tokens or 0 for outcome in done
    )
    tokens_out = sum(num_output_tokens(outcome) for outcome in done)
    good = sum(_meets(time, slo) for time in times)
    return {
        "num_prompts": len(outcomes),
        "completed": len(done),
        "failed": len(lost),
        "errors": dict(Counter(outcome.error for outcome in lost)),
        "refused": len(refused),
        "p99_refusal_ms": percentile([(o.end_s - o.sent_s) * 1e3 for o in refused], 99)
        if refused
        else None,
        "duration": duration,
        "total_input_tokens": tokens_in,
        "total_output_tokens": tokens_out,
        "request_throughput": len(done) / duration,
        "request_goodput": good / duration if slo else None,
        "output_throughput": tokens_out / duration,
        "total_token_throughput": (tokens_in + tokens_out) / duration,
        **_latencies(times),
        "client_cpu_share": sum(round_.cpu_s for round_ in rounds) / duration,
        "client_lag_p99_ms": percentile([(o.sent_s - o.due_s) * 1e3 for o in outcomes], 99),
        "server_counters": _counters(rounds),
    }


def _latencies(times: Sequence[RequestLatencies]) -> dict[str, float | None]:
    values = {
        "ttft": [time.ttft for time in times],
        "tpot": [time.tpot for time in times if time.tpot is not None],
        "itl": [gap for time in times for gap in time.itl],
        "e2el": [time.e2el for time in times],
    }
    return {
        name: value for kind in LATENCIES for name, value in _spread(kind, values[kind]).items()
    }


def _spread(kind: str, values: Sequence[float]) -> dict[str, float | None]:
    names = [f"{part}_{kind}_ms" for part in ("mean", "median", "std", "p90", "p99")]
    if not values:
        return dict.fromkeys(names)
    spread = (
        statistics.fmean(values),
        percentile(values, 50),
        statistics.pstdev(values),
        percentile(values, 90),
        percentile(values, 99),
    )
    return dict(zip(names, spread, strict=True))


def _meets(times: RequestLatencies, slo: Mapping[str, float]) -> bool:
    return all((getattr(times, name) or 0.0) <= limit for name, limit in slo.items())


def _counters(rounds: Sequence[Round]) -> dict[str, float | None]:
    """What the server counted meanwhile; None for what it does not count."""
    names = ("prompt_tokens", "generation_tokens", "prefix_hits", "preemptions")
    totals: dict[str, float | None] = dict.fromkeys(names)
    for round_ in rounds:
        counted = counter_increases(round_)
        for name in names:
            if (increase := counted[name]) is not None:
                totals[name] = (totals[name] or 0.0) + increase
    return totals


def counter_increases(round_: Round) -> dict[str, float | None]:
    """Tokens and preemptions by the server's counters in one round."""
    before, after = round_.before, round_.after
    if before is None or after is None:
        return dict.fromkeys(("prompt_tokens", "generation_tokens", "prefix_hits", "preemptions"))
    base = None if rates_between(before, after).had_restart else before

    def increase(name: str) -> float | None:
        new, old = getattr(after, name), getattr(base, name, None)
        return None if new is None else float(new) - float(old or 0.0)

    names = ("prompt_tokens", "generation_tokens", "prefix_hits", "preemptions")
    return {name: increase(name) for name in names}
