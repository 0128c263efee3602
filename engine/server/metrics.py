"""Prometheus metrics under vLLM's names, so that boards and tools made for it work here.

Names, types, labels and buckets are those of vLLM 0.30; `stoker_*` are our own. Each server has a
registry of its own.
"""

from __future__ import annotations

import collections
import os
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, TypeVar, cast

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

from engine.config import CacheConfig
from engine.env import COUNTS_VARIABLE
from engine.frontend.iteration_stats import FinishedRequestStats, IterationStats
from engine.messages import DraftStats, GraphStats, HandshakeReady, MissCause, SchedulerStats
from engine.version import __version__

_Family = TypeVar("_Family", Gauge, Counter, Histogram)

_LABELS = ("model_name", "engine")

# fmt: off
_TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)
_ITL_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)
_LATENCY_BUCKETS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
    120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)
# fmt: on
_STEP_BUCKETS = tuple(float(n) for n in (1, *(2**k for k in range(3, 15))))
_SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")  # by level
_FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
_PROMPT_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")


def create_registry() -> CollectorRegistry:
    """A registry with what is known before the engine: process, Python, version."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    build = Gauge(
        "stoker_build_info",
        "Version of this server.",
        ["version"],
        registry=registry,
        multiprocess_mode="mostrecent",
    )
    build.labels(version=__version__).set(1)
    return registry


def exposition(registry: CollectorRegistry) -> bytes:
    """The text of /metrics; of all API servers together, where they count in one folder."""
    if COUNTS_VARIABLE not in os.environ:
        return generate_latest(registry)
    together = CollectorRegistry()
    MultiProcessCollector(together)  # type: ignore[no-untyped-call]
    return generate_latest(together)


def initial_stats(ready: HandshakeReady) -> SchedulerStats:
    """The state of an engine that has done nothing yet."""
    return SchedulerStats(num_free_blocks=ready.num_gpu_blocks - 1)  # all but the null block


def token_buckets(max_value: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50, ... up to and not above `max_value`."""
    buckets = []
    power = 1
    while power <= max_value:
        buckets += [float(power * step) for step in (1, 2, 5) if power * step <= max_value]
        power *= 10
    return tuple(buckets)


class EngineMetrics:
    """The metrics of every engine of a server, told apart by the label `engine`; a StatSink."""

    def __init__(
        self,
        registry: CollectorRegistry,
        model_name: str,
        cache: CacheConfig,
        readies: Sequence[HandshakeReady],
    ) -> None:
        families = _Families(registry)
        self._engines = [
            _EngineSeries(families, model_name, cache, ready, rank)
            for rank, ready in enumerate(readies)
        ]

    def begin(self, readies: Sequence[HandshakeReady]) -> None:
        """Say what the engines' states are before their first steps."""
        for rank, ready in enumerate(readies):
            self.record(initial_stats(ready), IterationStats(), rank)

    def record(
        self, scheduler: SchedulerStats | None, iteration: IterationStats, engine: int = 0
    ) -> None:
        self._engines[engine].record(scheduler, iteration)


class StepHistogram(Histogram):
    """A histogram that takes the values of one step together."""

    def observe_all(self, values: Sequence[float]) -> None:
        """As `observe` of each, but each bucket's lock is taken once."""
        if not values:
            return
        self._sum.inc(sum(values))
        # The requests of one step have mostly waited for it alike.
        buckets: collections.Counter[int] = collections.Counter()
        for value, count in collections.Counter(values).items():
            buckets[bisect_left(self._upper_bounds, value)] += count
        for place, count in buckets.items():
            self._buckets[place].inc(count)


class _Families:
    """Each metric of a registry once, by name, for however many engines."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._made: dict[str, Any] = {}

    def get(
        self, kind: type[_Family], name: str, text: str, labels: Sequence[str], **more: Any
    ) -> _Family:
        """Make it at the first call."""
        if kind is Gauge:
            more["multiprocess_mode"] = "mostrecent"
        if name not in self._made:
            self._made[name] = kind(name, text, labels, registry=self._registry, **more)
        return cast(_Family, self._made[name])


class _EngineSeries:
    """All series of one engine."""

    def __init__(
        self,
        families: _Families,
        model_name: str,
        cache: CacheConfig,
        ready: HandshakeReady,
        rank: int,
    ) -> None:
        self._families = families
        self._values = {"model_name": model_name, "engine": str(rank)}
        self._add_gauges()
        self._add_counters()
        self._add_latencies()
        self._add_sizes(token_buckets(ready.max_model_len))
        self._add_cache_info(cache, ready)

    def record(self, scheduler: SchedulerStats | None, iteration: IterationStats) -> None:
        """Add one step of this engine."""
        if scheduler is not None:
            self._record_state(scheduler)
        self._record_tokens(iteration)
        self._ttft.observe_all(iteration.first_token_latencies_s)
        self._itl.observe_all(iteration.inter_token_latencies_s)
        self._params_n.observe_all(iteration.n_params)
        self._max_generation.observe_all(iteration.max_generation_tokens)
        if iteration.num_aborted or iteration.num_failed:
            self._success["abort"].inc(iteration.num_aborted)
            self._success["error"].inc(iteration.num_failed)
        for request in iteration.finished:
            self._record_finished(request)

    # ---- construction --------------------------------------------------------------------------

    def _add_gauges(self) -> None:
        self._running = self._gauge(
            "vllm:num_requests_running", "Requests in the scheduler's running list."
        )
        self._waiting = self._gauge("vllm:num_requests_waiting", "Requests that wait to run.")
        reasons = self._labelled_gauge(
            "vllm:num_requests_waiting_by_reason",
            "Waiting requests by what they wait for.",
            "reason",
        )
        self._waiting_capacity = reasons.labels(**self._values, reason="capacity")
        reasons.labels(**self._values, reason="deferred").set(0)
        sleep = self._labelled_gauge(
            "vllm:engine_sleep_state", "1 for the state that the engine is in.", "sleep_state"
        )
        self._sleep_states = [
            sleep.labels(**self._values, sleep_state=name) for name in _SLEEP_STATES
        ]
        self._set_sleep_level(0)
        self._usage = self._gauge(
            "vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1 (cached free ones not)."
        )
        self._cached_blocks = self._gauge(
            "stoker_kv_cached_blocks", "KV blocks with a prefix-cache hash, free ones included."
        )
        self._free_blocks = self._gauge("stoker_kv_free_blocks", "KV blocks that can be allocated.")

    def _add_counters(self) -> None:
        self._queries = self._counter(
            "vllm:prefix_cache_queries", "Tokens looked up in the prefix cache."
        )
        self._hits = self._counter("vllm:prefix_cache_hits", "Tokens found in the prefix cache.")
        by_cause = self._labelled_counter(
            "stoker_prefix_cache_misses",
            "Requests whose prompt was not found whole in the prefix cache, by what kept it out.",
            "cause",
        )
        self._misses = {
            cause: by_cause.labels(**self._values, cause=cause.value) for cause in MissCause
        }
        self._preemptions = self._counter("vllm:num_preemptions", "Requests put back to waiting.")
        self._prompt_tokens = self._counter(
            "vllm:prompt_tokens", "Prompt tokens of requests whose prefill is done."
        )
        by_source = self._labelled_counter(
            "vllm:prompt_tokens_by_source", "Prompt tokens by where their KV came from.", "source"
        )
        sources = {name: by_source.labels(**self._values, source=name) for name in _PROMPT_SOURCES}
        self._computed_tokens = sources["local_compute"]
        self._hit_tokens = sources["local_cache_hit"]
        self._cached_tokens = self._counter(
            "vllm:prompt_tokens_cached", "Prompt tokens that were in the prefix cache."
        )
        self._generation_tokens = self._counter("vllm:generation_tokens", "Generated tokens.")
        success = self._labelled_counter(
            "vllm:request_success", "Finished requests by reason.", "finished_reason"
        )
        self._success = {
            reason: success.labels(**self._values, finished_reason=reason)
            for reason in _FINISH_REASONS
        }

    def _add_latencies(self) -> None:
        self._ttft = self._histogram(
            "vllm:time_to_first_token_seconds", "Arrival to first token.", _TTFT_BUCKETS
        )
        self._itl = self._histogram(
            "vllm:inter_token_latency_seconds", "Between two outputs of a request.", _ITL_BUCKETS
        )
        self._tpot = self._histogram(
            "vllm:request_time_per_output_token_seconds",
            "Mean gap between a request's tokens.",
            _ITL_BUCKETS,
        )
        self._e2e = self._histogram(
            "vllm:e2e_request_latency_seconds", "Arrival to finish.", _LATENCY_BUCKETS
        )
        self._queue_time = self._histogram(
            "vllm:request_queue_time_seconds", "Queued to scheduled.", _LATENCY_BUCKETS
        )
        self._inference_time = self._histogram(
            "vllm:request_inference_time_seconds", "Scheduled to last token.", _LATENCY_BUCKETS
        )
        self._prefill_time = self._histogram(
            "vllm:request_prefill_time_seconds", "Scheduled to first token.", _LATENCY_BUCKETS
        )
        self._decode_time = self._histogram(
            "vllm:request_decode_time_seconds", "First to last token.", _LATENCY_BUCKETS
        )

    def _add_sizes(self, tokens: Sequence[float]) -> None:
        self._request_prompt = self._histogram(
            "vllm:request_prompt_tokens", "Prompt length of a request.", tokens
        )
        self._request_generation = self._histogram(
            "vllm:request_generation_tokens", "Output length of a request.", tokens
        )
        self._max_generation = self._histogram(
            "vllm:request_max_num_generation_tokens", "Longest output of n samples.", tokens
        )
        self._params_max_tokens = self._histogram(
            "vllm:request_params_max_tokens", "max_tokens of a request.", tokens
        )
        self._computed_kv = self._histogram(
            "vllm:request_prefill_kv_computed_tokens", "Prompt tokens really computed.", tokens
        )
        self._params_n = self._histogram(
            "vllm:request_params_n", "n of a request.", (1, 2, 5, 10, 20)
        )
        self._request_preemptions = self._histogram(
            "vllm:request_num_preemptions", "Preemptions of a request.", (1, 2, 3, 4, 5, 10, 20)
        )
        self._step_tokens = self._histogram(
            "vllm:iteration_tokens_total", "Prompt and output tokens of a step.", _STEP_BUCKETS
        )

    def _gauge(self, name: str, text: str) -> Gauge:
        return self._families.get(Gauge, name, text, _LABELS).labels(**self._values)

    def _counter(self, name: str, text: str) -> Counter:
        return self._families.get(Counter, name, text, _LABELS).labels(**self._values)

    def _labelled_gauge(self, name: str, text: str, label: str) -> Gauge:
        return self._families.get(Gauge, name, text, (*_LABELS, label))

    def _labelled_counter(self, name: str, text: str, label: str) -> Counter:
        return self._families.get(Counter, name, text, (*_LABELS, label))

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> StepHistogram:
        family = self._families.get(StepHistogram, name, text, _LABELS, buckets=buckets)
        return cast(StepHistogram, family.labels(**self._values))

    def _add_cache_info(self, cache: CacheConfig, ready: HandshakeReady) -> None:
        """The KV cache's configuration as labels of a gauge that is always 1."""
        labels = {
            "engine": self._values["engine"],
            "block_size": ready.block_size,
            "cache_dtype": cache.cache_dtype,
            "enable_prefix_caching": cache.enable_prefix_caching,
            "gpu_memory_utilization": cache.gpu_memory_utilization,
            "kv_cache_memory_bytes": cache.kv_cache_memory_bytes,
            "kv_cache_size_tokens": ready.kv_cache_size_tokens,
            "kv_cache_max_concurrency": round(ready.kv_cache_max_concurrency, 2),
            "num_gpu_blocks": ready.num_gpu_blocks,
            "num_gpu_blocks_override": cache.num_gpu_blocks_override,
            "num_cpu_blocks": None,
        }
        info = self._families.get(
            Gauge, "vllm:cache_config_info", "Configuration of the KV cache.", list(labels)
        )
        info.labels(**{name: str(value) for name, value in labels.items()}).set(1)

    # ---- recording -----------------------------------------------------------------------------

    def _record_state(self, scheduler: SchedulerStats) -> None:
        self._running.set(scheduler.num_running_reqs)
        self._waiting.set(scheduler.num_waiting_reqs)
        self._waiting_capacity.set(scheduler.num_waiting_reqs)
        self._usage.set(scheduler.kv_cache_usage)
        self._cached_blocks.set(scheduler.num_cached_blocks)
        self._free_blocks.set(scheduler.num_free_blocks)
        if scheduler.sleep_level != self._sleep_level:
            self._set_sleep_level(scheduler.sleep_level)
        if scheduler.num_preemptions_delta:
            self._preemptions.inc(scheduler.num_preemptions_delta)
        if scheduler.prefix_cache_queries_delta:
            self._queries.inc(scheduler.prefix_cache_queries_delta)
            self._hits.inc(scheduler.prefix_cache_hits_delta)
        if scheduler.drafts is not None:
            self._record_drafts(scheduler.drafts)
        if scheduler.graphs is not None:
            self._record_graphs(scheduler.graphs)

    def _set_sleep_level(self, sleep_level: int) -> None:
        self._sleep_level = sleep_level
        for level, state in enumerate(self._sleep_states):
            state.set(1 if level == sleep_level else 0)

    def _record_drafts(self, drafts: DraftStats) -> None:
        """Of engines that guess; others have no such series, as in vLLM."""
        self._counter("vllm:spec_decode_num_drafts", "Drafts that were computed in a step.").inc(
            drafts.num_drafts
        )
        self._counter("vllm:spec_decode_num_draft_tokens", "Tokens of these drafts.").inc(
            drafts.num_draft_tokens
        )
        self._counter(
            "vllm:spec_decode_num_accepted_tokens", "Tokens of drafts that were kept."
        ).inc(drafts.num_accepted_tokens)
        by_place = self._labelled_counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "The same by place in the draft.",
            "position",
        )
        for place, count in enumerate(drafts.accepted_by_place):
            by_place.labels(**self._values, position=place).inc(count)

    def _record_graphs(self, graphs: GraphStats) -> None:
        """Of devices that record CUDA graphs."""
        self._counter("stoker_device_steps", "Steps of the device.").inc(graphs.num_steps)
        replayed = self._labelled_counter(
            "stoker_graph_steps", "Steps that replayed CUDA graphs.", "mode"
        )
        for mode, count in graphs.replayed.items():
            replayed.labels(**self._values, mode=mode).inc(count)
        self._counter("stoker_graph_tokens", "Tokens of these steps, padding included.").inc(
            graphs.num_graph_tokens
        )
        self._counter("stoker_graph_padding_tokens", "Tokens of padding in these steps.").inc(
            graphs.num_padding_tokens
        )

    def _record_tokens(self, iteration: IterationStats) -> None:
        computed = iteration.num_computed_prompt_tokens
        if iteration.num_prompt_tokens:
            self._prompt_tokens.inc(iteration.num_prompt_tokens)
            self._computed_tokens.inc(computed)
            self._hit_tokens.inc(iteration.num_cached_tokens)
            self._cached_tokens.inc(iteration.num_cached_tokens)
        for cause in iteration.misses:
            self._misses[cause].inc()
        self._generation_tokens.inc(iteration.num_generation_tokens)
        if computed + iteration.num_generation_tokens:
            self._step_tokens.observe(computed + iteration.num_generation_tokens)

    def _record_finished(self, request: FinishedRequestStats) -> None:
        self._success[str(request.finish_reason)].inc()
        self._e2e.observe(request.e2e_latency_s)
        self._queue_time.observe(request.queue_time_s)
        self._prefill_time.observe(request.prefill_time_s)
        self._decode_time.observe(request.decode_time_s)
        self._inference_time.observe(request.inference_time_s)
        self._tpot.observe(request.time_per_output_token_s)
        self._request_prompt.observe(request.num_prompt_tokens)
        self._request_generation.observe(request.num_generation_tokens)
        if request.max_tokens is not None:
            self._params_max_tokens.observe(request.max_tokens)
        self._computed_kv.observe(request.num_prompt_tokens - request.num_cached_tokens)
        self._request_preemptions.observe(request.num_preemptions)
