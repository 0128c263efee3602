"""The ring of past samples, and the frozen snapshot of it that the widgets draw.

A snapshot looks at one moment, the newest or an earlier one, and at a window of time before it.
Percentiles are differences over that window, restarts included; without any they cover the time
since the server started.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from app.client.metrics.histograms import Histogram
from app.client.metrics.sample import MetricsSample, Rates, rates_between

WINDOW_S = 60.0
WINDOWS_S = (WINDOW_S, 300.0, 900.0, 3600.0)
CAPACITY = 3600

_LATENCIES = ("ttft", "itl", "queue", "e2e")
_COUNTERS = ("prompt_tokens", "generation_tokens", "finished")
_START_S, _END_S = attrgetter("start_s"), attrgetter("sample.time_s")
_RATES = frozenset(
    ("prompt_tokens_per_s", "generation_tokens_per_s", "finished_per_s", "tokens_per_step")
)


@dataclass(frozen=True, slots=True)
class Latency:
    """The latency histograms over one stretch; `window_s` None means since server start."""

    ttft: Histogram | None
    itl: Histogram | None
    queue: Histogram | None
    e2e: Histogram | None
    window_s: float | None


Series = Sequence[tuple[float, float, "float | None"]]
"""A value holds from after a first moment up to a second one; None where it is not known.

Thousands are made for each picture, which is why they are the cheapest kind of record.
"""


@dataclass(frozen=True, slots=True)
class Point:
    """One sample and the rates since the one before. `life` counts the restarts seen so far."""

    sample: MetricsSample
    start_s: float  # the value's stretch begins here: at the sample before, or at a gap's end
    life: int
    num_gaps: int
    prompt_tokens_per_s: float | None = None
    generation_tokens_per_s: float | None = None
    finished_per_s: float | None = None
    tokens_per_step: float | None = None
    moved_s: float = 0.0  # when a counter last went up while requests were there

    def value(self, name: str) -> float | None:
        """A rate of this point, or else a field of its sample."""
        found: float | None = getattr(self if name in _RATES else self.sample, name)
        return found


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything one picture shows: the moment of `points[-1]`, and `window_s` before it."""

    points: tuple[Point, ...]  # those of the window; the newest is there in any case
    base: Point | None  # the last one before the window
    window_s: float
    num_back: int  # samples between this one and the newest
    num_restarts: int
    latency: Latency
    recent_hit_rate: float | None  # 0..1 over the window
    recent_preemptions: float | None  # over the window
    recent_failed: float | None = None  # requests, over the window
    recent_finished: float | None = None
    recent_acceptance: float | None = None  # 0..1 of the draft tokens, over the window
    recent_graph_share: float | None = None  # 0..1 of the steps
    recent_padding: float | None = None  # 0..1 of the tokens of steps that replayed graphs

    @property
    def point(self) -> Point:
        """The moment that is shown."""
        return self.points[-1]

    @property
    def sample(self) -> MetricsSample:
        """The sample of that moment."""
        return self.point.sample

    @property
    def prompt_tokens_per_s(self) -> float | None:
        """Prompt tokens per second since the sample before."""
        return self.point.prompt_tokens_per_s

    @property
    def generation_tokens_per_s(self) -> float | None:
        """Generated tokens per second since the sample before."""
        return self.point.generation_tokens_per_s

    @property
    def quiet_s(self) -> float:
        """How long no counter of tokens or requests moved, while requests are there."""
        return self.sample.time_s - self.point.moved_s

    def series(self, name: str) -> Series:
        """A rate, or a field of the samples, over the window."""
        starts, ends = map(_START_S, self.points), map(_END_S, self.points)
        return list(zip(starts, ends, self._values(name), strict=True))

    def peak(self, name: str) -> float | None:
        """The largest known value in the window."""
        return max((value for value in self._values(name) if value is not None), default=None)

    def _values(self, name: str) -> Iterable[float | None]:
        return map(attrgetter(name if name in _RATES else f"sample.{name}"), self.points)


class MetricHistory:
    """Samples in order of time; it knows where the server was away between two of them."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self._points: deque[Point] = deque(maxlen=capacity)
        self._newest: MetricsSample | None = None
        self._num_restarts = 0
        self._num_gaps = 0

    @property
    def num_points(self) -> int:
        """How far one can step back, and one more."""
        return len(self._points)

    def append(self, sample: MetricsSample) -> None:
        """Add a sample; its rates are taken against the one before, across any gap."""
        before = self._points[-1] if self._points else None
        rates = rates_between(self._newest, sample) if self._newest else None
        self._num_restarts += bool(rates and rates.had_restart)
        if before is not None:
            before = dataclasses.replace(before, sample=_slim(before.sample))
            self._points[-1] = before
        self._points.append(self._point(before, sample, rates))
        self._newest = sample

    def append_gap(self) -> None:
        """Note that a sample was due and did not come."""
        self._num_gaps += 1

    def snapshot(self, window_s: float = WINDOW_S, num_back: int = 0) -> Snapshot | None:
        """The state `num_back` samples before the newest one; None before the first."""
        if not self._points:
            return None
        end = max(1, len(self._points) - num_back)
        points = list(self._points)[:end]
        start_s = points[-1].sample.time_s - window_s
        first = next(i for i, point in enumerate(points) if point.sample.time_s >= start_s)
        base = points[first - 1] if first else None
        inside = tuple(points[first:])
        lives = _lives(base, inside)
        return Snapshot(
            points=inside,
            base=base,
            window_s=window_s,
            num_back=len(self._points) - end,
            num_restarts=inside[-1].life,
            latency=_latency(inside[-1].sample, lives, window_s),
            recent_hit_rate=_share(lives, "prefix_hits", "prefix_queries"),
            recent_preemptions=_increase(lives, "preemptions"),
            recent_failed=_increase(lives, "failed"),
            recent_finished=_increase(lives, "finished"),
            recent_acceptance=_share(lives, "spec_accepted_tokens", "spec_draft_tokens"),
            recent_graph_share=_share(lives, "graph_steps", "device_steps"),
            recent_padding=_share(lives, "graph_padding_tokens", "graph_tokens"),
        )

    def _point(self, before: Point | None, sample: MetricsSample, rates: Rates | None) -> Point:
        had_gap = before is None or before.num_gaps != self._num_gaps
        has_moved = before is None or rates is None or _has_moved(before.sample, sample)
        steps = rates.step_tokens if rates else None
        return Point(
            sample=sample if before is None else _sharing(before.sample, sample),
            start_s=sample.time_s if had_gap or before is None else before.sample.time_s,
            life=self._num_restarts,
            num_gaps=self._num_gaps,
            prompt_tokens_per_s=rates.prompt_tokens_per_s if rates else None,
            generation_tokens_per_s=rates.generation_tokens_per_s if rates else None,
            finished_per_s=rates.finished_per_s if rates else None,
            tokens_per_step=steps.sum / steps.n if steps and steps.n else None,
            moved_s=sample.time_s if has_moved or before is None else before.moved_s,
        )


def _slim(sample: MetricsSample) -> MetricsSample:
    """Without what nobody asks of a past sample: an hour of samples has to fit into memory."""
    return dataclasses.replace(
        sample,
        tpot=None,
        prefill_time=None,
        decode_time=None,
        inference_time=None,
        prompt_length=None,
        output_length=None,
        step_tokens=None,
    )


def _sharing(earlier: MetricsSample, later: MetricsSample) -> MetricsSample:
    """The later sample; its latencies are the earlier one's objects where nothing was added."""
    same = {
        name: getattr(earlier, name)
        for name in _LATENCIES
        if getattr(earlier, name) is not None and getattr(earlier, name) == getattr(later, name)
    }
    return dataclasses.replace(later, **same) if same else later


def _has_moved(earlier: MetricsSample, later: MetricsSample) -> bool:
    if not (later.running or later.waiting):
        return True
    return any(getattr(earlier, name) != getattr(later, name) for name in _COUNTERS)


# ---- over a window -------------------------------------------------------------------------------

_Life = tuple["MetricsSample | None", MetricsSample]


def _lives(base: Point | None, inside: Sequence[Point]) -> list[_Life]:
    """First and last sample of each life of the server in the window.

    A life that began inside it counts from zero: its first sample is None. The first one of all
    began before we looked, so only what came after its first sample is ours to tell.
    """
    points = [base, *inside] if base is not None else list(inside)
    lives: list[_Life] = []
    for _, group in groupby(points, key=lambda point: point.life):
        samples = [point.sample for point in group]
        lives.append((None if lives else samples[0], samples[-1]))
    return lives


def _increase(lives: Sequence[_Life], name: str) -> float | None:
    total: float | None = None
    for first, last in lives:
        end = getattr(last, name)
        start = getattr(first, name) if first is not None else None
        if end is not None:
            total = (total or 0.0) + end - (start or 0.0)
    return total


def _share(lives: Sequence[_Life], part: str, whole: str) -> float | None:
    """None where one is not counted, or the whole has not grown."""
    increase, of = _increase(lives, part), _increase(lives, whole)
    return increase / of if of and increase is not None else None


def _latency(sample: MetricsSample, lives: Sequence[_Life], window_s: float) -> Latency:
    recent = {name: _sum(_differences(lives, name)) for name in _LATENCIES}
    if any(histogram and histogram.n for histogram in recent.values()):
        return Latency(**recent, window_s=window_s)
    return Latency(sample.ttft, sample.itl, sample.queue, sample.e2e, None)


def _differences(lives: Sequence[_Life], name: str) -> Iterator[Histogram]:
    for first, last in lives:
        end: Histogram | None = getattr(last, name)
        if end is not None:
            yield end.since(getattr(first, name) if first is not None else None)


def _sum(parts: Iterator[Histogram]) -> Histogram | None:
    total: Histogram | None = None
    for part in parts:
        total = total.plus(part) if total else part
    return total
