"""One sample of a server as text for a pipe."""

from __future__ import annotations

from app.client import formatting as fmt
from app.client.histograms import Histogram
from app.client.metrics import MetricsSample
from app.client.sample_record import FRACTIONS


def sample_text(url: str, sample: MetricsSample) -> str:
    """Its figures, one to a line."""
    blocks = f"{fmt.count(sample.kv_blocks_used)} / {fmt.count(sample.kv_blocks_total)} blocks"
    rows = [
        ("server", "  ".join(part for part in (url, sample.engine, sample.model) if part)),
        ("requests", f"{fmt.count(sample.running)} running, {fmt.count(sample.waiting)} waiting"),
        ("KV cache", f"{fmt.percent(sample.kv_usage)} used, {blocks}"),
        ("cached", fmt.percent(sample.kv_cached_share)),
        ("prefix hits", fmt.percent(sample.prefix_hit_rate)),
        ("preemptions", fmt.count(sample.preemptions)),
        ("prompt", f"{fmt.count(sample.prompt_tokens)} tokens since start"),
        ("generation", f"{fmt.count(sample.generation_tokens)} tokens since start"),
        ("first token", _percentiles(sample.ttft)),
        ("inter-token", _percentiles(sample.itl)),
        ("end to end", _percentiles(sample.e2e)),
    ]
    return "\n".join(f"{label:<12}  {value}" for label, value in rows)


def _percentiles(histogram: Histogram | None) -> str:
    parts = []
    for name, fraction in FRACTIONS:
        found = histogram.percentile(fraction) if histogram else None
        parts.append(f"{name} {fmt.percentile(found):<9}")
    return f"{'  '.join(parts)}  n {fmt.count(histogram.n if histogram else None)}"
