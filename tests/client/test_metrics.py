from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from app.client.metrics import MetricsSample, rates_between, read_sample

REAL = Path(__file__).parents[3] / "shared" / "metrics"


def sample(text: str, time_s: float = 0.0) -> MetricsSample:
    found = read_sample(text, time_s)
    assert found is not None
    return found


def real(name: str) -> MetricsSample:
    path = REAL / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return sample(path.read_text())


def test_real_vllm_under_load() -> None:
    found = real("vllm-0.30.0-busy.txt")
    assert (found.engine, found.model) == ("vllm", "smollm2")
    assert (found.running, found.waiting, found.kv_usage) == (0, 0, 0.0)
    assert (found.kv_blocks_total, found.kv_blocks_used, found.block_size) == (728, 0, 128)
    assert found.kv_capacity_tokens == 93184
    assert (found.prompt_tokens, found.generation_tokens) == (8101, 17280)
    assert (found.prefix_queries, found.prefix_hits, found.prefix_hit_rate) == (8101, 0, 0.0)
    assert (found.finished, found.preemptions) == (135, 0)
    assert found.kv_cached_share is None
    assert found.ttft is not None
    assert found.ttft.n == 135
    median = found.ttft.percentile(0.5)
    assert median is not None
    # Rank 67.5 among 51 at most 0.75 s and 75 at most 1 s.
    assert median.value == pytest.approx(0.75 + 0.25 * 16.5 / 24)
    assert (median.lower, median.upper) == (0.75, 1.0)
    assert found.itl is not None
    assert found.itl.n == 17145


def test_real_vllm_next_version() -> None:
    found = real("vllm-0.32.0-idle.txt")
    assert (found.kv_blocks_total, found.kv_capacity_tokens) == (364, 46592)
    assert found.ttft is not None
    assert found.ttft.percentile(0.5) is None
    assert found.prefix_hit_rate is None


def test_real_idle_to_busy_gives_rates() -> None:
    idle, busy = real("vllm-0.30.0-idle.txt"), real("vllm-0.30.0-busy.txt")
    rates = rates_between(idle, dataclasses.replace(busy, time_s=10.0))
    assert not rates.had_restart
    assert idle.generation_tokens is not None
    assert rates.generation_tokens_per_s == pytest.approx((17280 - idle.generation_tokens) / 10)
    assert rates.ttft is not None
    assert idle.ttft is not None
    assert rates.ttft.n == 135 - idle.ttft.n


def test_absent_is_none_not_zero() -> None:
    found = sample("vllm:num_requests_running 0\n")
    assert found.running == 0
    blank = MetricsSample(0.0, "vllm", running=0)
    assert found == blank


def test_text_of_another_exporter_is_no_sample() -> None:
    assert read_sample("python_info 1\n", 0.0) is None


def test_nan_counts_as_absent() -> None:
    assert sample("vllm:kv_cache_usage_perc NaN\nvllm:num_requests_running 1\n").kv_usage is None


def test_old_vllm_names() -> None:
    found = sample(
        "vllm:gpu_cache_usage_perc 0.25\n"
        "vllm:gpu_prefix_cache_queries_total 10\nvllm:gpu_prefix_cache_hits_total 4\n"
        'vllm:time_per_output_token_seconds_bucket{le="0.1"} 3\n'
        'vllm:time_per_output_token_seconds_bucket{le="+Inf"} 3\n'
        "vllm:prompt_tokens 12\n"
    )
    assert found.kv_usage == 0.25
    assert found.prefix_hit_rate == pytest.approx(0.4)
    assert found.itl is not None
    assert found.itl.n == 3
    assert found.prompt_tokens == 12


def test_switched_off_hit_rate_gauge_is_unknown() -> None:
    assert sample("vllm:gpu_prefix_cache_hit_rate -1\n").prefix_hit_rate is None


def test_sums_over_data_parallel_engines() -> None:
    found = sample(
        'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="1"} 4\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.5\nvllm:kv_cache_usage_perc{engine="1"} 0.1\n'
        'vllm:cache_config_info{engine="0",num_gpu_blocks="101",block_size="16"} 1\n'
        'vllm:cache_config_info{engine="1",num_gpu_blocks="301",block_size="16"} 1\n'
    )
    assert found.running == 7
    assert found.kv_blocks_total == 402
    assert found.kv_usage == pytest.approx((0.5 * 101 + 0.1 * 301) / 402)
    assert found.kv_blocks_used == 80
    assert found.kv_capacity_tokens is None


def test_own_engine_adds_free_and_cached_blocks() -> None:
    found = sample(
        'vllm:cache_config_info{num_gpu_blocks="101",block_size="16"} 1\n'
        "vllm:kv_cache_usage_perc 0.4\nstoker_kv_free_blocks 60\nstoker_kv_cached_blocks 75\n"
    )
    assert found.engine == "stoker"
    assert found.kv_blocks_used == 40
    assert found.kv_cached_share == pytest.approx(0.75)


def test_sglang() -> None:
    found = sample(
        'sglang:num_running_reqs{priority=""} 5\nsglang:num_running_reqs{priority="1"} 2\n'
        "sglang:num_queue_reqs 1\nsglang:token_usage 0.3\nsglang:max_total_num_tokens 1000\n"
        "sglang:kv_evictable_tokens 250\nsglang:cache_hit_rate 0.6\n"
        "sglang:generation_tokens_total 99\n"
    )
    assert (found.engine, found.running, found.waiting) == ("sglang", 5, 1)
    assert (found.kv_usage, found.kv_cached_share, found.prefix_hit_rate) == (0.3, 0.25, 0.6)
    assert found.generation_tokens == 99
    assert found.kv_blocks_total is None


def test_llamacpp() -> None:
    found = sample(
        "llamacpp:requests_processing 1\nllamacpp:requests_deferred 2\n"
        "llamacpp:prompt_tokens_total 30\nllamacpp:tokens_predicted_total 40\n"
    )
    assert (found.engine, found.running, found.waiting) == ("llama.cpp", 1, 2)
    assert (found.prompt_tokens, found.generation_tokens) == (30, 40)
    assert found.ttft is None


def test_restart_counts_from_zero_and_says_so() -> None:
    before = MetricsSample(0.0, "vllm", generation_tokens=1000, prompt_tokens=10)
    after = MetricsSample(2.0, "vllm", generation_tokens=50, prompt_tokens=40)
    rates = rates_between(before, after)
    assert rates.had_restart
    assert rates.generation_tokens_per_s == 25
    assert rates.prompt_tokens_per_s == 20
    assert rates.preemptions is None


def test_a_server_that_is_starting_and_counts_nothing_yet_is_a_restart() -> None:
    before = MetricsSample(0.0, "stoker", running=0, prompt_tokens=31)
    starting = MetricsSample(2.0, "stoker", running=0)
    ready = MetricsSample(4.0, "stoker", running=0, prompt_tokens=0)
    assert rates_between(before, starting).had_restart
    assert not rates_between(starting, ready).had_restart


def test_values_that_are_no_numbers_are_unknown() -> None:
    found = read_sample(
        "vllm:kv_cache_usage_perc +Inf\nvllm:num_requests_running NaN\n"
        "vllm:prompt_tokens_total -Inf\nvllm:num_requests_waiting 2\n",
        0.0,
    )
    assert found is not None
    assert (found.kv_usage, found.running, found.prompt_tokens) == (None, None, None)
    assert found.waiting == 2


def test_no_time_between_samples_gives_no_rate() -> None:
    one = MetricsSample(1.0, "vllm", generation_tokens=1)
    assert rates_between(one, one).generation_tokens_per_s is None
