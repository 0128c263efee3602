from __future__ import annotations

import math

from app.client.metrics.histograms import Histogram
from app.client.metrics.sample import MetricsSample
from tui.state.history import MetricHistory, Snapshot
from tui.widgets.charts.history_graph import columns


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
    assert found.series("running") == [(0, 0, 1), (2, 2, 2)]
    assert found.series("generation_tokens_per_s") == [(0, 0, None), (2, 2, 10)]
    assert found.generation_tokens_per_s == 10
    assert [dot[2] for dot in found.series("waiting")] == [None, None]
    assert columns(found.series("running"), 4.0, 4) == [None, 1, None, 2]
    history.append(sample(3, running=5, generation_tokens=30))
    assert snapshot(history).series("running")[-1] == (2, 3, 5)
    assert columns(snapshot(history).series("running"), 4.0, 4) == [1, None, 2, 5]


def test_snapshot_stays_what_it_was() -> None:
    history = MetricHistory()
    history.append(sample(0, running=1))
    before = snapshot(history)
    history.append(sample(1, running=2))
    assert [dot[2] for dot in before.series("running")] == [1]


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
    # The minute ends at 76 s; what was counted until 10 s is before it.
    assert snapshot(history).recent_hit_rate == 0.4


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


def test_an_earlier_moment_is_what_was_seen_then() -> None:
    history = MetricHistory()
    for second in range(10):
        history.append(sample(second, running=second, generation_tokens=second * second))
        if second == 6:
            seen = snapshot(history)
    back = history.snapshot(num_back=3)
    assert back is not None
    assert back.sample == seen.sample
    assert back.generation_tokens_per_s == seen.generation_tokens_per_s == 11
    assert (back.num_back, seen.num_back) == (3, 0)
    assert [dot[2] for dot in back.series("running")] == list(range(7))
    oldest = history.snapshot(num_back=99)
    assert oldest is not None
    assert (oldest.sample.running, oldest.num_back) == (0, 9)


def test_window_bounds_plots_and_percentiles() -> None:
    history = MetricHistory()
    for second in range(0, 700, 10):
        history.append(MetricsSample(second, "vllm", running=second, ttft=histogram(second, 0)))
    minute, hour = history.snapshot(60.0), history.snapshot(3600.0)
    assert minute is not None
    assert hour is not None
    assert (len(minute.points), len(hour.points)) == (7, 70)
    assert minute.latency.ttft is not None
    assert hour.latency.ttft is not None
    # From the last sample before the window; in an hour from the first sample of all.
    assert (minute.latency.ttft.n, hour.latency.ttft.n) == (70, 690)
    assert (minute.peak("running"), minute.peak("waiting")) == (690, None)


def test_two_restarts_and_a_ring_that_has_turned() -> None:
    history = MetricHistory(capacity=4)
    counts = [(50, 0), (70, 0), (5, 0), (9, 0), (2, 0), (3, 0)]
    for second, (low, high) in enumerate(counts):
        history.append(MetricsSample(second, "vllm", ttft=histogram(low, high)))
    found = snapshot(history)
    assert found.num_restarts == 2
    # Kept are 5, 9 | 2, 3: of the first life only what came after its first kept sample.
    assert found.latency.ttft == histogram(4 + 3, 0)


def test_past_samples_lose_only_what_nobody_asks_of_them() -> None:
    history = MetricHistory()
    full = MetricsSample(0, "vllm", running=1, tpot=histogram(1, 0), e2e=histogram(2, 0))
    history.append(full)
    assert snapshot(history).sample == full
    history.append(sample(1, running=2))
    past = history.snapshot(num_back=1)
    assert past is not None
    assert (past.sample.tpot, past.sample.e2e, past.sample.running) == (None, histogram(2, 0), 1)


def test_quiet_while_no_counter_moves() -> None:
    history = MetricHistory()
    for second, tokens in enumerate([1, 5, 5, 5]):
        history.append(sample(second, running=1, generation_tokens=tokens))
    assert snapshot(history).quiet_s == 2
    history.append(sample(4, running=0, generation_tokens=5))
    assert snapshot(history).quiet_s == 0
