from __future__ import annotations

import math

from app.client.histograms import Histogram
from app.client.metrics import MetricsSample
from tui.history import MetricHistory, Snapshot


def sample(time_s: float, **values: float) -> MetricsSample:
    return MetricsSample(time_s, "vllm", **values)  # type: ignore[arg-type]


def snapshot(history: MetricHistory) -> Snapshot:
    found = history.snapshot()
    assert found is not None
    return found


def test_empty() -> None:
    history = MetricHistory()
    history.append_gap()
    assert history.snapshot() is None


def test_series_have_gaps_where_samples_were_missing() -> None:
    history = MetricHistory()
    history.append(sample(0, running=1, generation_tokens=10))
    history.append_gap()
    history.append(sample(2, running=2, generation_tokens=30))
    found = snapshot(history)
    assert list(found.running) == [1, None, 2]
    assert list(found.generation_rates) == [None, None, 10]
    assert found.generation_tokens_per_s == 10
    assert list(found.waiting) == [None, None, None]


def test_snapshot_stays_what_it_was() -> None:
    history = MetricHistory()
    history.append(sample(0, running=1))
    before = snapshot(history)
    history.append(sample(1, running=2))
    assert list(before.running) == [1]


def test_capacity_survives_a_long_absence() -> None:
    history = MetricHistory(capacity=5)
    history.append(sample(0, running=1))
    for _ in range(20):
        history.append_gap()
    assert snapshot(history).sample.running == 1


def test_hit_rate_covers_the_last_minute() -> None:
    history = MetricHistory()
    history.append(sample(0, prefix_queries=0, prefix_hits=0))
    history.append(sample(10, prefix_queries=100, prefix_hits=0))
    history.append(sample(75, prefix_queries=150, prefix_hits=10))
    history.append(sample(76, prefix_queries=200, prefix_hits=40))
    assert snapshot(history).recent_hit_rate == 0.6


def histogram(low: float, high: float) -> Histogram:
    return Histogram((1.0, math.inf), (low, low + high), 0.0)


def test_latency_is_recent_and_falls_back_to_the_servers_start() -> None:
    history = MetricHistory()
    history.append(MetricsSample(0, "vllm", ttft=histogram(100, 0)))
    assert snapshot(history).latency.window_s is None
    assert snapshot(history).latency.ttft == histogram(100, 0)
    history.append(MetricsSample(1, "vllm", ttft=histogram(103, 2)))
    assert snapshot(history).latency.window_s == 60
    assert snapshot(history).latency.ttft == histogram(3, 2)
    history.append(MetricsSample(62, "vllm", ttft=histogram(103, 2)))
    history.append(MetricsSample(63, "vllm", ttft=histogram(103, 2)))
    assert snapshot(history).latency.window_s is None


def test_a_restart_inside_the_window_counts_both_sides() -> None:
    history = MetricHistory()
    for time_s, counts in enumerate([(5, 0), (8, 0), (1, 1), (2, 1)]):
        history.append(MetricsSample(time_s, "vllm", ttft=histogram(*counts)))
    found = snapshot(history)
    assert found.num_restarts == 1
    assert found.latency.ttft == histogram(5, 1)
