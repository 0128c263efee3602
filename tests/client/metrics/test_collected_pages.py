"""Pages of servers that run several engines, ranks or models, and of collectors between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.client.metrics.exposition import KnownSeries, parse_exposition, with_label
from app.client.metrics.sample import MetricsSample, read_sample
from app.client.watch.sample_record import record_of
from tests.places import SHARED

PAGES = SHARED / "more-metrics"

READINGS: Mapping[str, Mapping[str, Any]] = {
    "m02-sglang-percent-gauge.txt": {
        "engine": "sglang",
        "model": "m",
        "requests_running": 22,
        "requests_waiting": 5,
        "prefix_hit_rate": 0.385,
        "e2e_latency_s.n": 900,
        "e2e_latency_s.mean": 3.5,
        "e2e_latency_s.p50.value": pytest.approx(2.71, abs=0.005),
        "e2e_latency_s.p50.lower": 1.0,
        "e2e_latency_s.p50.upper": 4.0,
        "e2e_latency_s.p90.lower": 4.0,
        "e2e_latency_s.p90.upper": None,
        "e2e_latency_s.p99.lower": 4.0,
        "e2e_latency_s.p99.upper": None,
        "kv_usage": None,
        "kv_capacity_tokens": None,
        "prompt_tokens_total": None,
        "generation_tokens_total": None,
    },
    "m03-sglang-tp-ranks-timestamp.txt": {
        "model": "glm-5.3",
        "requests_running": 2,
        "requests_waiting": 11,
        "kv_usage": 0.42,
        "engines": None,
    },
    "m04-sglang-4tp-same-pool.txt": {
        "model": None,
        "requests_running": 16,
        "requests_waiting": None,
        "kv_capacity_tokens": 262144,
        "kv_used_tokens": 239901,
        "kv_usage": 0.915,
        "engines": None,
    },
    "m06-llamacpp.txt": {
        "engine": "llama.cpp",
        "model": None,
        "requests_running": 2,
        "requests_waiting": 1,
        "prompt_tokens_total": 4882,
        "generation_tokens_total": 1397,
        "reported_prompt_tokens_per_s": 1952.8,
        "reported_generation_tokens_per_s": 46.4,
        "kv_usage": None,
    },
    "m08-vllm-histograms.txt": {
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "requests_running": 14,
        "requests_waiting": 3,
        "requests_finished_total": 2000,
        "requests_finished_by_reason_total.stop": 1840,
        "requests_finished_by_reason_total.length": 160,
        "prefix_hit_rate": 0.41,
        "e2e_latency_s.mean": 3.2,
        "e2e_latency_s.p50.value": pytest.approx(2.31, abs=0.005),
        "e2e_latency_s.p50.lower": 1.0,
        "e2e_latency_s.p50.upper": 2.5,
        "e2e_latency_s.p90.value": 7.0,
        "e2e_latency_s.p99.lower": 10.0,
        "e2e_latency_s.p99.upper": None,
        "prompt_length_tokens.mean": 453,
        "output_length_tokens.mean": 144,
        "kv_usage": None,
        "engines": None,
    },
    "m10-vllm-dp2.txt": {
        "model": "Qwen/Qwen3-32B-AWQ",
        "requests_running": 8,
        "requests_waiting": 1,
        "kv_usage": pytest.approx(0.69),
        "kv_blocks_total": 4000,
        "kv_block_size_tokens": 16,
        "kv_capacity_tokens": 64000,
        "generation_tokens_total": 600,
        "fullest_engine": "engine 1",
        "engines.engine 0.kv_usage": 0.42,
        "engines.engine 1.kv_usage": 0.96,
        "engines.engine 0.requests_running": 3,
        "engines.engine 1.requests_running": 5,
        "engines.engine 0.requests_waiting": 1,
        "engines.engine 1.requests_waiting": 0,
        "engines.engine 1.kv_blocks_total": 2000,
        "engines.engine 0.generation_tokens_total": 250,
        "engines.engine 1.generation_tokens_total": 350,
    },
    "m12-sglang-dp-attention.txt": {
        "model": "deepseek-r1",
        "requests_running": 18,
        "requests_waiting": 9,
        "kv_usage": pytest.approx(0.375),
        "fullest_engine": "dp_rank 1",
        **{
            f"engines.dp_rank {rank}.{key}": value
            for rank, values in enumerate(((3, 0, 0.1), (6, 7, 0.97), (4, 0, 0.12), (5, 2, 0.31)))
            for key, value in zip(
                ("requests_running", "requests_waiting", "kv_usage"), values, strict=True
            )
        },
    },
    "m13-sglang-old-name-label.txt": {
        "model": "/models/meta-llama/Llama-3.2-3B/5cc0/",
        "kv_capacity_tokens": 570979,
        "max_model_len": 131072,
        "max_running_requests": 2231,
        "prompt_tokens_total": 230794,
        "requests_running": None,
        "requests_waiting": None,
        "kv_usage": None,
    },
}


def sample(text: str) -> MetricsSample:
    found = read_sample(text, 0.0)
    assert found is not None
    return found


def value_at(record: Any, path: str) -> Any:
    for part in path.split("."):
        record = None if record is None else record.get(part)
    return record


@pytest.mark.skipif(not PAGES.is_dir(), reason="the collected pages are not here")
def test_every_collected_page_has_its_readings_here() -> None:
    assert {path.name for path in PAGES.glob("*.txt")} <= set(READINGS)


@pytest.mark.parametrize("name", READINGS)
def test_collected_page(name: str) -> None:
    path = PAGES / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    record = record_of(sample(path.read_text()))
    read = {key: value_at(record, key) for key in READINGS[name]}
    assert read == READINGS[name]


def test_sglang_data_parallel_engines_with_two_tensor_ranks_each() -> None:
    found = sample(
        "\n".join(
            f'sglang:{name}{{moe_ep_rank="{tp}",tp_rank="{tp}",model_name="m",dp_rank="{dp}"}} {v}'
            for dp, tp, running, usage in (
                (10, 3, 5, 0.2),
                (9, 1, 4, 0.8),
                (10, 2, 6, 0.2),
                (9, 0, 4, 0.8),
            )
            for name, v in (("num_running_reqs", running), ("token_usage", usage))
        )
    )
    assert found.running == 10
    assert [engine.name for engine in found.engines] == ["dp_rank 9", "dp_rank 10"]
    assert [engine.running for engine in found.engines] == [4, 6]
    assert found.fullest is not None
    assert found.fullest.name == "dp_rank 9"


def test_ranks_of_one_engine_do_not_count_a_histogram_twice() -> None:
    bucket = 'sglang:queue_time_seconds_bucket{{tp_rank="{}",le="{}"}} {}\n'
    text = "".join(
        bucket.format(rank, le, n) for rank in (0, 1) for le, n in (("0.5", 3), ("+Inf", 4))
    )
    found = sample(text + "sglang:num_running_reqs 0\n")
    assert found.queue is not None
    assert found.queue.n == 4


def test_a_total_beside_its_engines_counts_once() -> None:
    found = sample(
        "vllm:num_requests_running 9\n"
        'vllm:num_requests_running{engine="0"} 4\nvllm:num_requests_running{engine="1"} 5\n'
    )
    assert found.running == 9
    assert [engine.running for engine in found.engines] == [4, 5]


def test_priorities_without_a_total_are_added() -> None:
    text = 'sglang:num_queue_reqs{priority="1"} 2\nsglang:num_queue_reqs{priority="5"} 3\n'
    assert sample(text).waiting == 5
    assert sample(text + 'sglang:num_queue_reqs{priority=""} 5\n').waiting == 5


def test_open_metrics_with_time_stamps_exemplars_and_created_series() -> None:
    found = sample(
        "# TYPE vllm:generation_tokens counter\n"
        'vllm:generation_tokens_total{engine="0",model_name="m"} 70 1790347303.125 # {t="x"} 1 2\n'
        'vllm:generation_tokens_created{engine="0",model_name="m"} 1.79e9\n'
        'vllm:num_requests_running{engine="0",model_name="m"} 3 1790347303.125\n# EOF\n'
    )
    assert (found.generation_tokens, found.running, found.model) == (70, 3, "m")
    assert found.engines == ()


def test_a_time_stamp_is_never_taken_for_a_value_in_the_next_scrape() -> None:
    known: KnownSeries = {}
    parse_exposition("up 5 5\n", known)
    assert parse_exposition("up 5 6\n", known).get("up")[0].value == 5


def test_a_counter_is_not_read_for_the_gauge_of_the_same_name() -> None:
    text = "sglang:num_queue_reqs_total 999\nsglang:num_running_reqs 1\n"
    assert sample(text).waiting is None


@pytest.mark.parametrize("prefix", ["vllm_", "ray_vllm_", "ray_vllm:"])
def test_names_as_collectors_without_colons_write_them(prefix: str) -> None:
    found = sample(f'{prefix}num_requests_running{{WorkerId="a"}} 2\n{prefix}prompt_tokens_total 7')
    assert (found.engine, found.running, found.prompt_tokens) == ("vllm", 2, 7)


def test_shares_in_per_cent() -> None:
    text = 'sglang:token_usage{{dp_rank="0"}} {}\nsglang:token_usage{{dp_rank="1"}} {}\n'
    mixed = sample(text.format("0.5", "38.5"))
    assert [engine.kv_usage for engine in mixed.engines] == [0.005, 0.385]
    assert sample(text.format("1.0", "1.0000001")).kv_usage == 1.0


def test_a_cache_that_is_not_sized_yet_counts_no_blocks() -> None:
    text = 'vllm:cache_config_info{{engine="0",block_size="16",num_gpu_blocks="{}"}} 1\n'
    assert sample(text.format("None")).kv_blocks_total is None
    assert sample(text.format("None") + text.format("500")).kv_blocks_total == 500


def test_no_capacity_is_guessed_where_layers_keep_different_lengths() -> None:
    text = 'vllm:cache_config_info{{block_size="16",num_gpu_blocks="500"{}}} 1\n'
    assert sample(text.format("")).kv_capacity_tokens == 8000
    assert sample(text.format(',sliding_window="1024"')).kv_capacity_tokens is None
    assert sample(text.format(',sliding_window="None"')).kv_capacity_tokens == 8000


RANK_LABELS = ("tp_rank", "pp_rank", "moe_ep_rank", "pid")


@given(
    st.dictionaries(st.integers(0, 40), st.tuples(st.integers(0, 99), st.floats(0, 1)), min_size=2),
    st.lists(st.sampled_from(RANK_LABELS), unique=True),
    st.sampled_from(("dp_rank", "engine")),
    st.randoms(use_true_random=False),
)
def test_any_order_of_series_labels_and_ranks_reads_the_same(
    engines: dict[int, tuple[int, float]], ranks: list[str], label: str, random: Any
) -> None:
    lines = []
    for engine, (running, usage) in engines.items():
        for rank in range(2 if ranks else 1):
            labels = [f'{label}="{engine}"', 'model_name="m"', *(f'{r}="{rank}"' for r in ranks)]
            for name, value in (("num_running_reqs", running), ("token_usage", usage)):
                random.shuffle(labels)
                lines.append(f"sglang:{name}{{{','.join(labels)}}} {value}")
    random.shuffle(lines)
    found = sample("\n".join(lines))
    assert found.running == sum(running for running, _ in engines.values())
    assert [engine.name for engine in found.engines] == [f"{label} {n}" for n in sorted(engines)]
    assert found.fullest is not None
    assert found.fullest.kv_usage == max(usage for _, usage in engines.values())


# ---- a router, a model without a name, a server that loads ---------------------------------------


def test_label_is_put_into_every_sample_and_read_back() -> None:
    text = '# TYPE a counter\na_total{x="1",} 2 17 # {t="y"} 1\nb 3\nnot a sample}\n'
    exposition = parse_exposition(with_label(text, "model_name", 'q"\\n'))
    assert exposition.get("a")[0] == ({"x": "1", "model_name": 'q"\\n'}, 2)
    assert exposition.get("b")[0].labels == {"model_name": 'q"\\n'}
