"""Samples of servers on stdout: a JSON document, fields with tabs between them, or text to read."""

from __future__ import annotations

from collections.abc import Sequence

from app.client import formatting as fmt
from app.client.metrics.histograms import Histogram
from app.client.metrics.sample import EngineLoad, MetricsSample
from app.client.thresholds import findings, readings_of
from app.client.watch.recording import Recording
from app.client.watch.sample_record import FRACTIONS, flat, scraped_record, step_records
from app.client.watch.watched import Scraped
from app.output import print_json, print_plain


def print_samples_json(found: Sequence[Scraped], is_list: bool) -> None:
    """One sample of each server; alone it is a document of its own."""
    records = [scraped_record(one, with_reasons=True) for one in found]
    if is_list:
        print_json("stoker.fleet", {"servers": records})
    else:
        print_json("stoker.metrics", records[0])


def print_samples_plain(found: Sequence[Scraped], is_list: bool) -> None:
    """The same, a value to a line, with the server's name first when there can be several."""
    print_plain(
        (*((one.server.name,) if is_list else ()), key, value)
        for one in found
        for key, value in flat(scraped_record(one, with_reasons=False))
    )


def print_steps_json(recording: Recording) -> None:
    """What every recorded scrape says."""
    servers, documents = list(recording.servers), list(step_records(recording))
    print_json("stoker.replay", {"servers": servers, "steps": documents})


def print_steps_plain(recording: Recording) -> None:
    """The same, a value to a line, with the time and the server first."""
    for document in step_records(recording):
        where = (document.pop("time_s"), document.pop("server"))
        print_plain((*where, key, value) for key, value in flat(document))


def sample_text(url: str, sample: MetricsSample) -> str:
    """Its figures, one to a line."""
    blocks = f"{fmt.count(sample.kv_blocks_used)} / {fmt.count(sample.kv_blocks_usable)} blocks"
    fullest = f", fullest {sample.fullest.name}" if sample.fullest else ""
    rows = [
        ("server", "  ".join(part for part in (url, sample.engine, sample.model) if part)),
        ("requests", f"{fmt.count(sample.running)} running, {fmt.count(sample.waiting)} waiting"),
        *([("asleep", f"level {sample.sleep_level}")] if sample.sleep_level else []),
        ("KV cache", f"{fmt.percent(sample.kv_usage)} used, {blocks}{fullest}"),
        *((f"  {engine.name}", _engine_text(engine)) for engine in sample.engines),
        ("tokens", f"{fmt.count(sample.kv_held_tokens)} of {fmt.count(sample.kv_capacity_tokens)}"),
        ("reusable", fmt.percent(sample.kv_cached_share)),
        ("prefix hits", fmt.percent(sample.prefix_hit_rate)),
        ("preemptions", fmt.count(sample.preemptions)),
        ("prompt", _counted(sample.prompt_tokens, sample.reported_prompt_rate)),
        ("generation", _counted(sample.generation_tokens, sample.reported_generation_rate)),
        ("first token", _percentiles(sample.ttft)),
        ("inter-token", _percentiles(sample.itl)),
        ("end to end", _percentiles(sample.e2e)),
    ]
    for finding in findings(readings_of(sample)):
        rows.append((finding.level.signed(finding.level.name.lower()), finding.reason))
    return "\n".join(f"{label:<12}  {value}" for label, value in rows)


def _engine_text(engine: EngineLoad) -> str:
    load = f"{fmt.count(engine.running)} running, {fmt.count(engine.waiting)} waiting"
    return f"{load}, KV cache {fmt.percent(engine.kv_usage)}"


def _counted(tokens: float | None, rate: float | None) -> str:
    average = "" if rate is None else f", {fmt.rate(rate)} tok/s as the server averages it"
    return f"{fmt.count(tokens)} tokens since start{average}"


def _percentiles(histogram: Histogram | None) -> str:
    parts = []
    for name, fraction in FRACTIONS:
        found = histogram.percentile(fraction) if histogram else None
        parts.append(f"{name} {fmt.percentile(found):<9}")
    mean = fmt.seconds(histogram.mean if histogram else None)
    return f"{'  '.join(parts)}  mean {mean:<9}  n {fmt.count(histogram.n if histogram else None)}"
