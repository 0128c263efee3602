"""A sample as plain data for JSON and tabbed output, with a reason for each unknown value."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from app.client.debug.documents import DebugSample
from app.client.metrics.absence import why_absent
from app.client.metrics.histograms import Histogram
from app.client.metrics.sample import MetricsSample, Rates, rates_between
from app.client.watch.recording import Recording
from app.client.watch.replay import steps
from app.client.watch.watched import Scraped

FRACTIONS = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
_VALUES = {
    "requests_running": "running",
    "requests_waiting": "waiting",
    "requests_waiting_deferred": "waiting_deferred",
    "requests_finished_total": "finished",
    "requests_finished_by_reason_total": "finished_by_reason",
    "requests_failed_total": "failed",
    "requests_rejected_total": "rejected",
    "kv_usage": "kv_usage",
    "kv_blocks_used": "kv_blocks_used",
    "kv_blocks_total": "kv_blocks_total",
    "kv_cached_share": "kv_cached_share",
    "kv_block_size_tokens": "block_size",
    "kv_capacity_tokens": "kv_capacity_tokens",
    "kv_max_concurrency": "max_concurrency",
    "preemptions_total": "preemptions",
    "prefix_hit_rate": "prefix_hit_rate",
    "prompt_tokens_total": "prompt_tokens",
    "prompt_tokens_cached_total": "cached_prompt_tokens",
    "generation_tokens_total": "generation_tokens",
    "external_cache_queries_total": "external_queries",
    "external_cache_hits_total": "external_hits",
    "media_cache_queries_total": "media_queries",
    "media_cache_hits_total": "media_hits",
    "spec_drafts_total": "spec_drafts",
    "spec_draft_tokens_total": "spec_draft_tokens",
    "spec_accepted_tokens_total": "spec_accepted_tokens",
    "kv_used_tokens": "kv_used_tokens",
    "max_running_requests": "max_running",
    "max_model_len": "max_model_len",
    "reported_prompt_tokens_per_s": "reported_prompt_rate",
    "reported_generation_tokens_per_s": "reported_generation_rate",
    "sleep_state": "sleep_state",
    "start_time_s": "start_time_s",
}
_HISTOGRAMS = {
    "time_to_first_token_s": "ttft",
    "inter_token_latency_s": "itl",
    "time_per_output_token_s": "tpot",
    "e2e_latency_s": "e2e",
    "queue_time_s": "queue",
    "prefill_time_s": "prefill_time",
    "decode_time_s": "decode_time",
    "inference_time_s": "inference_time",
    "step_tokens": "step_tokens",
    "prompt_length_tokens": "prompt_length",
    "output_length_tokens": "output_length",
}


def record_of(sample: MetricsSample) -> dict[str, Any]:
    """Every value of the sample under its public name; unknown is None."""
    return {
        "engine": sample.engine,
        "model": sample.model,
        **{key: getattr(sample, field) for key, field in _VALUES.items()},
        **{key: percentiles(getattr(sample, field)) for key, field in _HISTOGRAMS.items()},
        **_engines_record(sample),
    }


def _engines_record(sample: MetricsSample) -> dict[str, Any]:
    """Each engine of a server that has several, by name; of one with a single engine nothing."""
    if not sample.engines:
        return {}
    fields = {key: field for key, field in _VALUES.items() if hasattr(sample.engines[0], field)}
    return {
        "fullest_engine": sample.fullest.name if sample.fullest else None,
        "engines": {
            engine.name: {key: getattr(engine, field) for key, field in fields.items()}
            for engine in sample.engines
        },
    }


def reasons_of(record: Mapping[str, Any], sample: MetricsSample) -> dict[str, str]:
    """Why each None of the flattened record is None."""
    return {key: _reason(key, sample) for key, value in flat(record) if value is None}


def scraped_record(scraped: Scraped, *, with_reasons: bool) -> dict[str, Any]:
    """One server's answer; of one that did not answer only the error."""
    server, sample = scraped.server, scraped.sample
    about = {"name": server.name, "url": server.url}
    if sample is None:
        cause = scraped.server.cause()
        return {**about, "error": str(scraped.error), **({"cause": cause} if cause else {})}
    record = record_of(sample)
    reasons = {"reasons": reasons_of(record, sample)} if with_reasons else {}
    return {**about, "error": None, **record, **reasons}


def step_records(recording: Recording) -> Iterator[dict[str, Any]]:
    """Every scrape of a recording, with the rates against the one before."""
    before: dict[int, MetricsSample] = {}
    for step in steps(recording):
        document: dict[str, Any] = {
            "time_s": step.time_s,
            "server": recording.servers[step.server],
            "error": step.error or None,
        }
        if step.sample is not None:
            earlier = before.get(step.server)
            document.update(record_of(step.sample))
            rates = rates_between(earlier, step.sample) if earlier else None
            document["rates"] = rates_record(rates) if rates else None
            document["engine_state"] = debug_record(step.debug) if step.debug else None
            before[step.server] = step.sample
        yield document


def rates_record(rates: Rates) -> dict[str, Any]:
    """What happened between two samples."""
    return {
        "interval_s": round(rates.interval_s, 3),
        "had_restart": rates.had_restart,
        "prompt_tokens_per_s": _rounded(rates.prompt_tokens_per_s),
        "generation_tokens_per_s": _rounded(rates.generation_tokens_per_s),
        "requests_per_s": _rounded(rates.finished_per_s),
        "time_to_first_token_s": percentiles(rates.ttft),
        "inter_token_latency_s": percentiles(rates.itl),
    }


def debug_record(debug: DebugSample) -> dict[str, Any]:
    """What the scheduler and the block pool of our engine say."""
    scheduler, blocks = debug.scheduler, debug.blocks
    return {
        "requests_running": scheduler.num_running,
        "requests_waiting": scheduler.num_waiting,
        "steps_total": scheduler.num_steps,
        "limit": scheduler.step.limit if scheduler.step else None,
        "blocks_used": blocks.num_used,
        "blocks_cached": blocks.num_cached,
        "blocks_free": blocks.num_free,
        "requests": [request.id for request in debug.requests],
    }


def percentiles(histogram: Histogram | None) -> dict[str, Any] | None:
    """`value` is interpolated inside the bucket (lower, upper]; the last has no upper bound."""
    if histogram is None:
        return None
    mean = histogram.mean
    document: dict[str, Any] = {"n": histogram.n, "mean": None if mean is None else round(mean, 6)}
    for name, fraction in FRACTIONS:
        found = histogram.percentile(fraction)
        document[name] = found and {
            "value": None if math.isinf(found.upper) else round(found.value, 6),
            "lower": found.lower,
            "upper": None if math.isinf(found.upper) else found.upper,
        }
    return document


def flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf with the path to it, joined by dots."""
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _reason(key: str, sample: MetricsSample) -> str:
    if key.endswith((".value", ".upper")):
        return "above the last bound of the server's histogram"
    if key.rpartition(".")[2] in dict(FRACTIONS):
        return "no observations yet"
    if key.rpartition(".")[2] == "mean":
        return "no observations yet, or no sum of them"
    if key == "prefix_hit_rate" and sample.prefix_queries is not None:
        return "no observations yet"
    key = key.rpartition(".")[2] if key.startswith("engines.") else key
    return why_absent(_VALUES.get(key) or _HISTOGRAMS.get(key) or key, sample.engine)
