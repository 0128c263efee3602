from __future__ import annotations

import dataclasses

import pytest

from app.client.metrics import names as metric_names
from app.client.metrics.absence import metrics_hint, why_absent
from app.client.metrics.exposition import parse_exposition
from app.client.metrics.sample import MetricsSample, rates_between, read_sample
from tests.places import SHARED

REAL = SHARED / "metrics"


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
    assert found.kv_capacity_tokens == 402 * 16


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


# What vLLM exposes without further flags and nobody reads here, with the reason.
NOT_READ = {
    "vllm:prompt_tokens_by_source": "its parts are cached_prompt_tokens and the rest",
    "vllm:prompt_tokens_cached_by_source": "its sum is cached_prompt_tokens",
    "vllm:request_prefill_kv_computed_tokens": "prompt_length less what was cached",
    "vllm:request_max_num_generation_tokens": "output_length tells what was generated",
    "vllm:request_params_max_tokens": "what clients ask for says nothing of the server",
    "vllm:request_params_n": "what clients ask for says nothing of the server",
    "vllm:request_num_preemptions": "preemptions counts them when they happen",
    "vllm:estimated_flops_per_gpu": "an estimate that moves only with --enable-mfu-metrics",
    "vllm:estimated_read_bytes_per_gpu": "an estimate that moves only with --enable-mfu-metrics",
    "vllm:estimated_write_bytes_per_gpu": "an estimate that moves only with --enable-mfu-metrics",
}


@pytest.mark.parametrize("name", ["vllm-0.30.0-busy.txt", "vllm-0.32.0-idle.txt"])
def test_every_metric_of_a_real_vllm_is_read_or_left_out_on_purpose(name: str) -> None:
    path = REAL / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    known = {*metric_names.OWN_READING, *NOT_READ}
    for names in metric_names.ENGINES:
        for field in dataclasses.fields(names):
            known.update(getattr(names, field.name))
    known |= {f"{one}_total" for one in known}
    families = parse_exposition(path.read_text()).types
    ours = {one for one in families if one.startswith("vllm:") and not one.endswith("_created")}
    assert len(ours) > 30
    assert ours - known == set()


def test_the_start_time_tells_a_restart_that_counters_do_not() -> None:
    old = sample("vllm:generation_tokens_total 10\nprocess_start_time_seconds 1000\n")
    later = sample("vllm:generation_tokens_total 50\nprocess_start_time_seconds 2000\n", 10.0)
    rates = rates_between(old, later)
    assert rates.had_restart
    assert rates.generation_tokens_per_s == 5  # all of it is the new process's
    same = dataclasses.replace(later, start_time_s=1000.01)
    assert not rates_between(old, same).had_restart


def test_further_values_of_vllm() -> None:
    found = sample(
        'vllm:request_success_total{finished_reason="stop",engine="0"} 5\n'
        'vllm:request_success_total{finished_reason="stop",engine="1"} 2\n'
        'vllm:request_success_total{finished_reason="error",engine="0"} 3\n'
        'vllm:num_requests_waiting_by_reason{reason="capacity"} 4\n'
        'vllm:num_requests_waiting_by_reason{reason="deferred"} 1\n'
        'vllm:engine_sleep_state{sleep_state="awake"} 0\n'
        'vllm:engine_sleep_state{sleep_state="discard_all"} 1\n'
        "vllm:admission_rejections_total 6\nvllm:spec_decode_num_accepted_tokens_total 7\n"
        'vllm:cache_config_info{kv_cache_max_concurrency="2.5",num_gpu_blocks="9"} 1\n'
    )
    assert found.finished_by_reason == {"stop": 7, "error": 3}
    assert (found.finished, found.failed, found.rejected) == (10, 3, 6)
    assert (found.waiting_deferred, found.sleep_state) == (1, "discard_all")
    assert (found.spec_accepted_tokens, found.max_concurrency) == (7, 2.5)


def test_failed_requests_of_others() -> None:
    assert sample('tgi_queue_size 0\ntgi_request_failure{err="x"} 2\n').failed == 2
    assert sample("sglang:num_running_reqs 0\nsglang:num_aborted_requests_total 1\n").failed == 1
    assert sample("llamacpp:requests_processing 1\n").failed is None


@pytest.mark.parametrize(
    ("field", "engine", "word"),
    [
        ("kv_usage", "llama.cpp", "/slots"),
        ("ttft", "llama.cpp", "stoker bench"),
        ("spec_drafts", "vllm", "--speculative-config"),
        ("running", "vllm", "--disable-log-stats"),
        ("kv_usage", "tgi", "TGI"),
        ("kv_usage", "stoker", "does not expose"),
        ("kv_usage", None, "does not expose"),
    ],
)
def test_absence_has_a_reason(field: str, engine: str | None, word: str) -> None:
    assert word in why_absent(field, engine)


def test_a_missing_metrics_page_has_a_flag() -> None:
    assert "--metrics" in (metrics_hint(501) or "")
    assert "--enable-metrics" in (metrics_hint(404) or "")
    assert metrics_hint(500) is None


def test_tokens_held_are_counted_or_follow_from_the_share() -> None:
    share = MetricsSample(0.0, "vllm", kv_usage=0.25, kv_capacity_tokens=1000)
    assert share.kv_held_tokens == 250
    assert dataclasses.replace(share, kv_used_tokens=7).kv_held_tokens == 7
    assert dataclasses.replace(share, kv_capacity_tokens=None).kv_held_tokens is None
