"""One frozen sample of a server's state, and the rates between two samples.

What a server does not expose is None, never 0. Values are summed over data-parallel engines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.client import metric_names
from app.client.exposition import (
    Exposition,
    KnownSeries,
    Sample,
    finite_number,
    parse_exposition,
)
from app.client.histograms import Histogram
from app.client.metric_names import MetricNames
from app.client.terminal_text import strip_escapes


@dataclass(frozen=True, slots=True)
class MetricsSample:
    """State at `time_s` (monotonic clock). Counters and histograms count since the server's start.

    Block counts include vLLM's null block in `kv_blocks_total` only, as the start-up log does.
    """

    time_s: float
    engine: str
    model: str | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None  # 0..1
    kv_blocks_total: int | None = None
    kv_blocks_used: int | None = None
    kv_cached_share: float | None = None  # 0..1, free blocks that still hold a prefix included
    block_size: int | None = None  # tokens
    kv_capacity_tokens: int | None = None
    preemptions: float | None = None
    prefix_queries: float | None = None  # tokens
    prefix_hits: float | None = None  # tokens
    prefix_hit_rate: float | None = None  # 0..1; since start, or as the server reports it
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    finished: float | None = None
    ttft: Histogram | None = None
    itl: Histogram | None = None
    e2e: Histogram | None = None
    cached_prompt_tokens: float | None = None
    finished_by_reason: Mapping[str, float] | None = None  # stop, length, abort, error, ...
    failed: float | None = None  # requests that ended with an error
    rejected: float | None = None  # requests refused at the door
    waiting_deferred: float | None = None  # of `waiting`: LoRA, KV transfer, grammar
    sleep_state: str | None = None  # awake, weights_offloaded, discard_all
    max_concurrency: float | None = None  # requests of full length that the KV cache holds
    start_time_s: float | None = None  # of the server's process, unix time
    external_queries: float | None = None  # tokens asked of a KV connector
    external_hits: float | None = None
    media_queries: float | None = None  # items asked of the multi-modal cache
    media_hits: float | None = None
    spec_drafts: float | None = None
    spec_draft_tokens: float | None = None
    spec_accepted_tokens: float | None = None
    tpot: Histogram | None = None  # mean per request
    queue: Histogram | None = None  # seconds in the queue, counted when a request ends
    prefill_time: Histogram | None = None
    decode_time: Histogram | None = None
    inference_time: Histogram | None = None
    step_tokens: Histogram | None = None  # tokens per engine step
    prompt_length: Histogram | None = None
    output_length: Histogram | None = None


@dataclass(frozen=True, slots=True)
class Rates:
    """What happened between two samples; None where the server does not count it."""

    interval_s: float
    had_restart: bool
    prompt_tokens_per_s: float | None
    generation_tokens_per_s: float | None
    finished_per_s: float | None
    preemptions: float | None
    prefix_queries: float | None
    prefix_hits: float | None
    ttft: Histogram | None
    itl: Histogram | None
    e2e: Histogram | None
    queue: Histogram | None
    step_tokens: Histogram | None


def read_sample(text: str, time_s: float, known: KnownSeries | None = None) -> MetricsSample | None:
    """The sample in one scrape's text; None if it holds no metrics of a known engine."""
    return sample_from(parse_exposition(text, known), time_s)


def sample_from(exposition: Exposition, time_s: float) -> MetricsSample | None:
    """The sample in one scrape's lines; None if they are no metrics of a known engine."""
    recognised = metric_names.recognise(exposition)
    if recognised is None:
        return None
    return _Reader(exposition, *recognised).read(time_s)


def rates_between(earlier: MetricsSample, later: MetricsSample) -> Rates:
    """The difference of two samples; after a restart, what the new server has counted so far."""
    interval_s = later.time_s - earlier.time_s
    had_restart = _had_restart(earlier, later)
    base = MetricsSample(earlier.time_s, later.engine) if had_restart else earlier
    return Rates(
        interval_s=interval_s,
        had_restart=had_restart,
        prompt_tokens_per_s=_per_second(base.prompt_tokens, later.prompt_tokens, interval_s),
        generation_tokens_per_s=_per_second(
            base.generation_tokens, later.generation_tokens, interval_s
        ),
        finished_per_s=_per_second(base.finished, later.finished, interval_s),
        preemptions=_increase(base.preemptions, later.preemptions),
        prefix_queries=_increase(base.prefix_queries, later.prefix_queries),
        prefix_hits=_increase(base.prefix_hits, later.prefix_hits),
        ttft=_since(base.ttft, later.ttft),
        itl=_since(base.itl, later.itl),
        e2e=_since(base.e2e, later.e2e),
        queue=_since(base.queue, later.queue),
        step_tokens=_since(base.step_tokens, later.step_tokens),
    )


def _had_restart(earlier: MetricsSample, later: MetricsSample) -> bool:
    """A counter went back, or all are gone: a server that is starting counts nothing yet.

    The start time tells too when the new process has counted further than the old one had.
    """
    starts = earlier.start_time_s, later.start_time_s
    if starts[0] is not None and starts[1] is not None and abs(starts[1] - starts[0]) > 1.0:
        return True
    counters = zip(_counters(earlier), _counters(later), strict=True)
    pairs = [(old, new) for old, new in counters if old is not None]
    went_back = any(new is not None and new < old for old, new in pairs)
    return went_back or (bool(pairs) and all(new is None for new in _counters(later)))


def _counters(sample: MetricsSample) -> tuple[float | None, ...]:
    histograms = (sample.ttft, sample.itl, sample.e2e)
    return (
        sample.prompt_tokens,
        sample.generation_tokens,
        sample.preemptions,
        sample.prefix_queries,
        sample.prefix_hits,
        sample.finished,
        *(histogram.n if histogram else None for histogram in histograms),
    )


def _since(earlier: Histogram | None, later: Histogram | None) -> Histogram | None:
    return later.since(earlier) if later else None


def _increase(before: float | None, after: float | None) -> float | None:
    return None if after is None else after - (before or 0.0)


def _per_second(before: float | None, after: float | None, interval_s: float) -> float | None:
    increase = _increase(before, after)
    return None if increase is None or interval_s <= 0 else increase / interval_s


@dataclass(frozen=True, slots=True)
class _Reader:
    exposition: Exposition
    engine: str
    names: MetricNames

    def read(self, time_s: float) -> MetricsSample:
        values: dict[str, Any] = {
            name: self.total(getattr(self.names, name)) for name in metric_names.TOTALS
        }
        for name in metric_names.HISTOGRAMS:
            values[name] = self.histogram(getattr(self.names, name))
        blocks, usage = self.blocks_total(), self.kv_usage()
        finished = self.by_label(self.names.finished, "finished_reason")
        return MetricsSample(
            time_s=time_s,
            engine=self.engine,
            model=self.model(),
            kv_usage=usage,
            kv_blocks_total=blocks,
            kv_blocks_used=self.blocks_used(blocks, usage),
            kv_cached_share=self.cached_share(blocks),
            block_size=self.block_size(),
            kv_capacity_tokens=self.capacity_tokens(),
            prefix_hit_rate=self.hit_rate(values["prefix_queries"], values["prefix_hits"]),
            finished_by_reason=finished,
            failed=finished.get("error") if finished else self.total(self.names.failed),
            waiting_deferred=self.waiting_deferred(),
            sleep_state=self.sleep_state(),
            max_concurrency=self.max_concurrency(),
            start_time_s=self.total((metric_names.PROCESS_START,)),
            **values,
        )

    def samples(self, names: Sequence[str]) -> list[Sample]:
        """The samples of the first name that is exposed: finite values of whole series."""
        for name in names:
            found = self.exposition.get(name)
            if found:
                return [s for s in found if math.isfinite(s.value) and _is_whole(s)]
        return []

    def total(self, names: Sequence[str]) -> float | None:
        found = self.samples(names)
        return sum(sample.value for sample in found) if found else None

    def waiting_deferred(self) -> float | None:
        return (self.by_label((metric_names.WAITING_BY_REASON,), "reason") or {}).get("deferred")

    def by_label(self, names: Sequence[str], label: str) -> dict[str, float] | None:
        """The sum per value of `label`; None where no series has that label."""
        sums: dict[str, float] = {}
        for sample in self.samples(names):
            if label in sample.labels:
                key = strip_escapes(sample.labels[label])
                sums[key] = sums.get(key, 0.0) + sample.value
        return sums or None

    def sleep_state(self) -> str | None:
        """The state that every engine is in; None where they differ."""
        states = self.by_label((metric_names.SLEEP_STATE,), "sleep_state") or {}
        active = [state for state, number in states.items() if number > 0]
        return active[0] if len(active) == 1 else None

    def max_concurrency(self) -> float | None:
        texts = (s.labels.get("kv_cache_max_concurrency", "") for s in self.cache_configs())
        numbers = [number for text in texts if (number := finite_number(text)) is not None]
        return sum(numbers) if numbers else None

    def count(self, names: Sequence[str]) -> int | None:
        total = self.total(names)
        return None if total is None else round(total)

    def histogram(self, names: Sequence[str]) -> Histogram | None:
        found = (self.exposition.histogram(name) for name in names)
        return next((histogram for histogram in found if histogram), None)

    def model(self) -> str | None:
        for samples in self.exposition.samples.values():
            for sample in samples:
                if sample.labels.get("model_name"):
                    return strip_escapes(sample.labels["model_name"])
        return None

    def cache_configs(self) -> tuple[Sample, ...]:
        return self.exposition.get(metric_names.CACHE_CONFIG)

    def cache_config_numbers(self, label: str) -> Iterator[int]:
        for sample in self.cache_configs():
            text = sample.labels.get(label, "")
            if text.isascii() and text.isdigit():
                yield int(text)

    def blocks_total(self) -> int | None:
        return sum(self.cache_config_numbers("num_gpu_blocks")) or self.count(
            self.names.kv_blocks_total
        )

    def blocks_usable(self, total: int) -> int:
        """Each vLLM block pool keeps its null block to itself."""
        return total - len(self.cache_configs())

    def blocks_used(self, total: int | None, usage: float | None) -> int | None:
        if total is None:
            return None
        free = self.count((metric_names.FREE_BLOCKS,))
        if free is not None:
            return self.blocks_usable(total) - free
        return None if usage is None else round(usage * self.blocks_usable(total))

    def cached_share(self, total: int | None) -> float | None:
        cached = self.total((metric_names.CACHED_BLOCKS,))
        if cached is not None and total is not None and self.blocks_usable(total) > 0:
            return cached / self.blocks_usable(total)
        tokens, capacity = self.total(self.names.kv_cached_tokens), self.capacity_tokens()
        return tokens / capacity if tokens is not None and capacity else None

    def block_size(self) -> int | None:
        return next(self.cache_config_numbers("block_size"), None) or self.count(
            self.names.block_size
        )

    def capacity_tokens(self) -> int | None:
        """As reported; blocks x size would be wrong for hybrid models, so it is not computed."""
        return sum(self.cache_config_numbers("kv_cache_size_tokens")) or self.count(
            self.names.kv_capacity_tokens
        )

    def kv_usage(self) -> float | None:
        """The mean over engines, weighted by their blocks where these are known."""
        found = self.samples(self.names.kv_usage)
        if not found:
            return None
        weights = [self._num_blocks_of(sample.labels.get("engine")) for sample in found]
        if not all(weights):
            weights = [1] * len(found)
        weighted = sum(s.value * weight for s, weight in zip(found, weights, strict=True))
        return weighted / sum(weights)

    def _num_blocks_of(self, engine: str | None) -> int:
        for sample in self.cache_configs():
            text = sample.labels.get("num_gpu_blocks", "")
            if sample.labels.get("engine") == engine and text.isascii() and text.isdigit():
                return int(text)
        return 0

    def hit_rate(self, queries: float | None, hits: float | None) -> float | None:
        if queries is not None and hits is not None:
            return hits / queries if queries > 0 else None
        reported = [s.value for s in self.samples(self.names.prefix_hit_rate) if s.value >= 0]
        return sum(reported) / len(reported) if reported else None


def _is_whole(sample: Sample) -> bool:
    """SGLang repeats a series per priority and per rank; the total is under the empty label."""
    labels = sample.labels
    return not labels.get("priority") and labels.get("tp_rank", "0") in ("0", "")
