from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from engine.frontend.iteration_stats import IterationStats
from engine.messages import SchedulerStats
from engine.server.stat_logger import StatLogger


@pytest.fixture
def lines(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], list[str]]:
    monkeypatch.setattr(logging.getLogger("engine"), "propagate", True)
    caplog.set_level(logging.INFO, logger="engine")
    return lambda: [record.getMessage() for record in caplog.records]


def test_line_has_vllms_words_and_true_rates(lines: Callable[[], list[str]]) -> None:
    now = [100.0]
    stats = StatLogger("CPU", clock=lambda: now[0])
    state = SchedulerStats(
        num_running_reqs=4,
        num_waiting_reqs=1,
        kv_cache_usage=0.0061,
        prefix_cache_queries_delta=200,
        prefix_cache_hits_delta=50,
    )
    stats.record(state, IterationStats(num_prompt_tokens=200, num_cached_tokens=50))
    stats.record(None, IterationStats(num_generation_tokens=1234))
    now[0] += 10
    stats.log()
    assert lines() == [
        "Engine 000: Avg prompt throughput: 15.0 tokens/s, Avg generation throughput: 123.4 "
        "tokens/s, Running: 4 reqs, Waiting: 1 reqs, CPU KV cache usage: 0.6%, Prefix cache hit "
        "rate: 25.0%"
    ]


def test_one_line_of_zeros_then_silence(lines: Callable[[], list[str]]) -> None:
    now = [0.0]
    stats = StatLogger("GPU", clock=lambda: now[0])

    def tick() -> int:
        now[0] += 10
        stats.log()
        return len(lines())

    assert tick() == 0
    stats.record(SchedulerStats(num_running_reqs=1), IterationStats(num_generation_tokens=5))
    assert tick() == 1
    assert tick() == 2
    assert "Avg generation throughput: 0.0 tokens/s" in lines()[-1]
    assert tick() == 2
