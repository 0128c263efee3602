"""The ring of past samples, and the frozen snapshot of it that the widgets draw.

Percentiles and hit rate cover the last WINDOW_S seconds; after an idle minute the percentiles cover
the time since the server started.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from app.client.histograms import Histogram
from app.client.metrics import MetricsSample, Rates, rates_between

WINDOW_S = 60.0
CAPACITY = 600

Series = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Latency:
    """The three latency histograms over one stretch; `window_s` None means since server start."""

    ttft: Histogram | None
    itl: Histogram | None
    e2e: Histogram | None
    window_s: float | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything one picture shows. Series end with the newest sample; None is a gap."""

    sample: MetricsSample
    prompt_tokens_per_s: float | None
    generation_tokens_per_s: float | None
    recent_hit_rate: float | None  # 0..1 over WINDOW_S
    num_restarts: int
    quiet_s: float  # since a counter of tokens or requests moved, while requests are there
    latency: Latency
    running: Series
    waiting: Series
    prompt_rates: Series
    generation_rates: Series


@dataclass(frozen=True, slots=True)
class _Point:
    sample: MetricsSample
    rates: Rates | None

    @property
    def prompt_rate(self) -> float | None:
        return self.rates.prompt_tokens_per_s if self.rates else None

    @property
    def generation_rate(self) -> float | None:
        return self.rates.generation_tokens_per_s if self.rates else None


class MetricHistory:
    """Samples in order of time, with gaps where the server was away."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._points: deque[_Point | None] = deque(maxlen=capacity)
        self._newest: _Point | None = None  # kept even when gaps push it out
        self._num_restarts = 0
        self._moved_at_s = 0.0

    def append(self, sample: MetricsSample) -> None:
        """Add a sample; its rates are taken against the one before, across any gap."""
        rates = rates_between(self._newest.sample, sample) if self._newest else None
        self._num_restarts += bool(rates and rates.had_restart)
        if rates is None or _has_moved(self._newest.sample if self._newest else None, sample):
            self._moved_at_s = sample.time_s
        self._newest = _Point(sample, rates)
        self._points.append(self._newest)

    def append_gap(self) -> None:
        """Note that a sample was due and did not come."""
        if self._newest:
            self._points.append(None)

    def snapshot(self) -> Snapshot | None:
        """The state after the newest sample; None before the first."""
        newest = self._newest
        if newest is None:
            return None
        window = self._window(newest.sample.time_s - WINDOW_S)
        return Snapshot(
            sample=newest.sample,
            prompt_tokens_per_s=newest.prompt_rate,
            generation_tokens_per_s=newest.generation_rate,
            recent_hit_rate=_hit_rate(window),
            num_restarts=self._num_restarts,
            quiet_s=newest.sample.time_s - self._moved_at_s,
            latency=_latency(newest.sample, window),
            running=self._series(lambda point: point.sample.running),
            waiting=self._series(lambda point: point.sample.waiting),
            prompt_rates=self._series(lambda p: p.prompt_rate),
            generation_rates=self._series(lambda p: p.generation_rate),
        )

    def _series(self, value: Callable[[_Point], float | None]) -> Series:
        return tuple(value(point) if point else None for point in self._points)

    def _window(self, start_s: float) -> list[Rates]:
        return [
            point.rates
            for point in self._points
            if point and point.rates and point.sample.time_s - point.rates.interval_s >= start_s
        ]


def _has_moved(earlier: MetricsSample | None, later: MetricsSample) -> bool:
    if earlier is None or not (later.running or later.waiting):
        return True
    return any(
        getattr(earlier, name) != getattr(later, name)
        for name in ("prompt_tokens", "generation_tokens", "finished")
    )


def _hit_rate(window: Iterable[Rates]) -> float | None:
    queries = hits = 0.0
    for rates in window:
        queries += rates.prefix_queries or 0.0
        hits += rates.prefix_hits or 0.0
    return hits / queries if queries > 0 else None


def _latency(sample: MetricsSample, window: list[Rates]) -> Latency:
    recent = Latency(
        ttft=_sum(rates.ttft for rates in window),
        itl=_sum(rates.itl for rates in window),
        e2e=_sum(rates.e2e for rates in window),
        window_s=WINDOW_S,
    )
    if any(histogram and histogram.n for histogram in (recent.ttft, recent.itl, recent.e2e)):
        return recent
    return Latency(sample.ttft, sample.itl, sample.e2e, None)


def _sum(parts: Iterable[Histogram | None]) -> Histogram | None:
    total: Histogram | None = None
    for part in parts:
        if part:
            total = total.plus(part) if total else part
    return total
