"""One frozen sample of a server's state, and the rates between two samples.

What a server does not expose is None, never 0. Values are summed over data-parallel engines, and
`engines` keeps each of them: a mean hides the one that is full.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from app.client.metrics import names as metric_names
from app.client.metrics import series
from app.client.metrics.exposition import (
    Exposition,
    KnownSeries,
    SeriesValue,
    finite_number,
    parse_exposition,
)
from app.client.metrics.histograms import Histogram
from app.client.metrics.names import MetricNames
from app.client.terminal_text import strip_escapes


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """One engine of a server that has several, or one model of a router."""

    name: str
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None  # 0..1
    kv_blocks_total: int | None = None
    kv_capacity_tokens: int | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None


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
    device_steps: float | None = None
    graph_steps: float | None = None  # that replayed CUDA graphs
    graph_tokens: float | None = None  # of those, padding included
    graph_padding_tokens: float | None = None
    tpot: Histogram | None = None  # mean per request
    queue: Histogram | None = None  # seconds in the queue, counted when a request ends
    prefill_time: Histogram | None = None
    decode_time: Histogram | None = None
    inference_time: Histogram | None = None
    step_tokens: Histogram | None = None  # tokens per engine step
    prompt_length: Histogram | None = None
    output_length: Histogram | None = None
    kv_used_tokens: int | None = None
    max_running: float | None = None  # requests that may run at once
    max_model_len: int | None = None  # tokens of one request
    reported_prompt_rate: float | None = None  # tokens/s as the server averages it
    reported_generation_rate: float | None = None
    num_null_blocks: int = 0  # of `kv_blocks_total`, blocks that no request can ever hold
    has_blocks_override: bool = False  # --num-gpu-blocks-override decides the size of the pool
    engines: tuple[EngineLoad, ...] = ()  # in order of their ranks; empty with one engine

    @property
    def sleep_level(self) -> int:
        """1 where the weights are in the host's memory, 2 where they are dropped; 0 awake."""
        return {"weights_offloaded": 1, "discard_all": 2}.get(self.sleep_state or "", 0)

    @property
    def kv_blocks_usable(self) -> int | None:
        """Blocks that requests can hold; None where none are told."""
        return None if self.kv_blocks_total is None else self.kv_blocks_total - self.num_null_blocks

    @property
    def kv_held_tokens(self) -> int | None:
        """As the server counts them, else the used share of its capacity."""
        if self.kv_used_tokens is not None or self.kv_usage is None or not self.kv_capacity_tokens:
            return self.kv_used_tokens
        return round(self.kv_usage * self.kv_capacity_tokens)

    @property
    def fullest(self) -> EngineLoad | None:
        """The engine whose KV cache is fullest; None with one engine, or where none tells."""
        known = [engine for engine in self.engines if engine.kv_usage is not None]
        return max(known, key=lambda engine: engine.kv_usage or 0.0, default=None)


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
    exposition = metric_names.spelled_as_engines_do(exposition)
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


@dataclass(frozen=True)
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
        blocks, capacity = self.blocks_total(), self.capacity_tokens()
        used_tokens = self.count(self.names.kv_used_tokens)
        usage = self.kv_usage(used_tokens, capacity)
        finished = self.by_label(self.names.finished, "finished_reason")
        return MetricsSample(
            time_s=time_s,
            engine=self.engine,
            model=self.model(),
            kv_usage=usage,
            kv_blocks_total=blocks,
            kv_blocks_used=self.blocks_used(blocks, usage),
            kv_cached_share=self.cached_share(blocks, capacity),
            block_size=self.block_size(),
            kv_capacity_tokens=capacity,
            kv_used_tokens=used_tokens,
            prefix_hit_rate=self.hit_rate(values["prefix_queries"], values["prefix_hits"]),
            finished_by_reason=finished,
            failed=finished.get("error") if finished else self.total(self.names.failed),
            waiting_deferred=self.waiting_deferred(),
            sleep_state=self.sleep_state(),
            max_concurrency=self.max_concurrency(),
            start_time_s=self.largest((metric_names.PROCESS_START,)),
            max_model_len=self.largest_count(self.names.max_model_len),
            num_null_blocks=len(self.config_numbers("num_gpu_blocks")),
            has_blocks_override=bool(self.config_numbers("num_gpu_blocks_override")),
            engines=self.engines(),
            **values,
        )

    def samples(self, names: Sequence[str]) -> list[SeriesValue]:
        """The finite samples of the first name that has any, each thing once."""
        for name in names:
            # A gauge has no twin with `_total`: that would be the counter of something else.
            is_gauge = name in metric_names.GAUGE_NAMES
            exposed = (
                self.exposition.samples.get(name, ()) if is_gauge else self.exposition.get(name)
            )
            found = [s for s in exposed if math.isfinite(s.value)]
            if found:
                return series.counted_once(found)
        return []

    def total(self, names: Sequence[str]) -> float | None:
        found = series.totals(self.samples(names))
        return sum(sample.value for sample in found) if found else None

    def waiting_deferred(self) -> float | None:
        return (self.by_label((metric_names.WAITING_BY_REASON,), "reason") or {}).get("deferred")

    def by_label(self, names: Sequence[str], label: str) -> dict[str, float] | None:
        """The sum per value of `label`; None where no series has that label."""
        sums: dict[str, float] = {}
        for sample in series.totals(self.samples(names)):
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
        return self.config_sum("kv_cache_max_concurrency")

    def count(self, names: Sequence[str]) -> int | None:
        total = self.total(names)
        return None if total is None else round(total)

    def largest(self, names: Sequence[str]) -> float | None:
        """For what every engine has alike, such as a length."""
        return max((sample.value for sample in self.samples(names)), default=None)

    def largest_count(self, names: Sequence[str]) -> int | None:
        largest = self.largest(names)
        return None if largest is None else round(largest)

    def histogram(self, names: Sequence[str]) -> Histogram | None:
        found = (self.exposition.histogram(name, series.totals) for name in names)
        return next((histogram for histogram in found if histogram), None)

    def model(self) -> str | None:
        """The name under the first of the labels that servers have used for it; all of a router."""
        several = [label for label in metric_names.MODEL_LABELS if label in self.telling_labels]
        if several:
            return ", ".join(engine.name for engine in self.engines())
        for label in metric_names.MODEL_LABELS:
            for name, samples in self.exposition.samples.items():
                for sample in samples if metric_names.is_of_an_engine(name) else ():
                    if sample.labels.get(label):
                        return strip_escapes(sample.labels[label])
        return None

    # ---- the KV cache --------------------------------------------------------------------------

    def config_numbers(self, label: str) -> dict[series.EngineKey, float]:
        """A number among the labels of vLLM's cache configuration, per engine.

        Before its cache is sized an engine may expose the configuration with "None" in it.
        """
        found: dict[series.EngineKey, float] = {}
        for sample in self.exposition.get(metric_names.CACHE_CONFIG):
            number = finite_number(sample.labels.get(label, ""))
            if number is not None and number > 0:
                key = series.engine_key(sample.labels, self.telling_labels)
                found[key] = max(number, found.get(key, 0.0))
        return found

    def config_sum(self, label: str) -> float | None:
        numbers = self.config_numbers(label).values()
        return sum(numbers) if numbers else None

    def blocks_total(self) -> int | None:
        total = self.config_sum("num_gpu_blocks")
        return self.count(self.names.kv_blocks_total) if total is None else round(total)

    def blocks_usable(self, total: int) -> int:
        """Each vLLM block pool keeps its null block to itself."""
        return total - len(self.config_numbers("num_gpu_blocks"))

    def blocks_used(self, total: int | None, usage: float | None) -> int | None:
        if total is None:
            return None
        free = self.count((metric_names.FREE_BLOCKS,))
        if free is not None:
            return self.blocks_usable(total) - free
        return None if usage is None else round(usage * self.blocks_usable(total))

    def cached_share(self, total: int | None, capacity: int | None) -> float | None:
        cached = self.total((metric_names.CACHED_BLOCKS,))
        if cached is not None and total is not None and self.blocks_usable(total) > 0:
            return cached / self.blocks_usable(total)
        tokens = self.total(self.names.kv_cached_tokens)
        return tokens / capacity if tokens is not None and capacity else None

    def block_size(self) -> int | None:
        sizes = self.config_numbers("block_size").values()
        return round(max(sizes)) if sizes else self.largest_count(self.names.block_size)

    def capacity_tokens(self) -> int | None:
        """As reported; else blocks times their size, unless layers differ in what they keep."""
        capacities = self.capacities().values()
        return round(sum(capacities)) if capacities else self.count(self.names.kv_capacity_tokens)

    def capacities(self) -> dict[series.EngineKey, float]:
        reported = self.config_numbers("kv_cache_size_tokens")
        if reported or self.is_hybrid():
            return reported
        blocks, sizes = (self.config_numbers(key) for key in ("num_gpu_blocks", "block_size"))
        return {key: number * sizes[key] for key, number in blocks.items() if key in sizes}

    def is_hybrid(self) -> bool:
        """Whether some layers keep a window or a state: a block is no fixed number of tokens."""
        configs = self.exposition.get(metric_names.CACHE_CONFIG)
        telling = ("sliding_window", "mamba_block_size", "mamba_page_size_padded")
        return any(s.labels.get(label, "None") != "None" for s in configs for label in telling)

    def kv_usage(self, used_tokens: int | None, capacity: int | None) -> float | None:
        """The mean over engines, weighted by their blocks where these are known."""
        found = _as_shares(series.totals(self.samples(self.names.kv_usage)))
        if not found:
            return used_tokens / capacity if used_tokens is not None and capacity else None
        blocks = self.config_numbers("num_gpu_blocks")
        telling = self.telling_labels
        weights = [blocks.get(series.engine_key(s.labels, telling), 0.0) for s in found]
        if not all(weights):
            weights = [1.0] * len(found)
        weighted = sum(s.value * weight for s, weight in zip(found, weights, strict=True))
        return weighted / sum(weights)

    def hit_rate(self, queries: float | None, hits: float | None) -> float | None:
        if queries is not None and hits is not None:
            return hits / queries if queries > 0 else None
        # Switched off it is -1.
        reported = [s for s in self.samples(self.names.prefix_hit_rate) if s.value >= 0]
        shares = _as_shares(series.totals(reported))
        return sum(s.value for s in shares) / len(shares) if shares else None

    # ---- each engine ---------------------------------------------------------------------------

    @cached_property
    def load_samples(self) -> dict[str, list[SeriesValue]]:
        names = ("running", "waiting", "kv_usage", "prompt_tokens", "generation_tokens")
        return {name: self.samples(getattr(self.names, name)) for name in names}

    @cached_property
    def telling_labels(self) -> tuple[str, ...]:
        return series.engine_labels(self.load_samples.values())

    def engines(self) -> tuple[EngineLoad, ...]:
        telling = self.telling_labels
        if not telling:
            return ()
        families = {**self.load_samples, "kv_usage": _as_shares(self.load_samples["kv_usage"])}
        values: dict[series.EngineKey, dict[str, Any]] = {}
        for name, samples in families.items():
            for sample in samples:
                if key := series.engine_key(sample.labels, telling):
                    entry = values.setdefault(key, {})
                    combine = max if name == "kv_usage" else operator.add
                    entry[name] = combine(entry.get(name, 0.0), sample.value)
        blocks, capacities = self.config_numbers("num_gpu_blocks"), self.capacities()
        for key, entry in values.items():
            if key in blocks:
                entry["kv_blocks_total"] = round(blocks[key])
            if key in capacities:
                entry["kv_capacity_tokens"] = round(capacities[key])
        return tuple(
            EngineLoad(strip_escapes(series.engine_name(key)), **values[key])
            for key in sorted(values, key=series.natural_order)
        )


_ROUNDED_UP = 1.001


def _as_shares(samples: list[SeriesValue]) -> list[SeriesValue]:
    """Shares of 1: some versions expose per cent under the same name.

    A server that reports more than 1 for one engine writes per cent for all of them.
    """
    is_percent = any(sample.value > _ROUNDED_UP for sample in samples)
    divisor = 100.0 if is_percent else 1.0
    return [SeriesValue(s.labels, min(1.0, s.value / divisor)) for s in samples]
