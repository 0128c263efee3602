from __future__ import annotations

import pytest

from app.client.metrics.sample import EngineLoad, MetricsSample
from app.client.thresholds import THRESHOLDS, Level, findings, level_of, readings_of, worst


@pytest.mark.parametrize("name", THRESHOLDS)
def test_levels_begin_at_their_limits(name: str) -> None:
    threshold = THRESHOLDS[name]
    assert level_of(name, None) is Level.OK
    assert level_of(name, threshold.warn * 0.99) is Level.OK
    assert level_of(name, threshold.warn) is Level.WARN
    if threshold.alarm is not None:
        assert threshold.warn < threshold.alarm
        assert level_of(name, threshold.alarm) is Level.ALARM


def test_every_level_that_is_not_ok_has_a_sign() -> None:
    signs = [level.sign for level in Level if level]
    assert all(signs)
    assert len(set(signs)) == len(signs)


def test_worst_comes_first_with_its_reason() -> None:
    found = findings({"waiting": 3, "kv_usage": 0.98, "preemptions": 0, "ttft_p90": None})
    assert [finding.name for finding in found] == ["kv_usage", "waiting"]
    assert found[0].reason == "KV cache 98.0 % (alarm from 97.0 %)"
    assert found[1].reason == "waiting 3 (warning from 1)"
    assert worst(found) is Level.ALARM
    assert worst(()) is Level.OK


def test_one_full_engine_is_an_alarm_whatever_the_mean_says() -> None:
    engines = (EngineLoad("engine 0", kv_usage=0.4), EngineLoad("engine 1", kv_usage=0.98))
    sample = MetricsSample(0.0, "vllm", kv_usage=0.69, waiting=0, engines=engines)
    assert [f.level for f in findings(readings_of(sample))] == [Level.ALARM]


def test_errors_are_a_share_of_what_ended() -> None:
    sample = MetricsSample(0.0, "vllm", finished=200, failed=4)
    assert readings_of(sample)["error_rate"] == 0.02
    assert readings_of(MetricsSample(0.0, "vllm", failed=4))["error_rate"] is None
