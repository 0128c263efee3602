from __future__ import annotations

import math
import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from app.client.metrics.sample import read_sample
from engine.config import CacheConfig
from engine.frontend.iteration_stats import IterationStats
from engine.messages import GraphStats, SchedulerStats
from engine.server.metrics import EngineMetrics, StepHistogram, create_registry, token_buckets
from tests.server.fake_core import NUM_BLOCKS, READY, FakeCore
from tests.server.serving import MODEL, Served, serving
from tests.waiting import until

# Families of vLLM for parts that this engine does not have.
LEFT_OUT = {
    "vllm:estimated_flops_per_gpu",
    "vllm:estimated_read_bytes_per_gpu",
    "vllm:estimated_write_bytes_per_gpu",
    "vllm:external_prefix_cache_queries",
    "vllm:external_prefix_cache_hits",
    "vllm:mm_cache_queries",
    "vllm:mm_cache_hits",
}


def _families(text: str) -> dict[str, Metric]:
    return {
        family.name: family
        for family in text_string_to_metric_families(text)
        if not family.name.endswith("_created")
    }


async def _scrape(served: Served) -> dict[str, Metric]:
    response = await served.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return _families(response.text)


def _value(families: dict[str, Metric], sample_name: str, **labels: str) -> float:
    wanted = {"model_name": MODEL, "engine": "0", **labels}
    found = [
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == sample_name and sample.labels == wanted
    ]
    assert len(found) == 1, (sample_name, labels, found)
    return found[0]


def _shape(family: Metric) -> dict[str, object]:
    """Type, label names, values of labels other than the model's, and bucket limits."""
    labels = {frozenset(sample.labels) - {"le"} for sample in family.samples}
    values = {
        (name, value)
        for sample in family.samples
        for name, value in sample.labels.items()
        if name not in ("model_name", "le")
    }
    return {"type": family.type, "labels": labels, "values": values}


def _limits(family: Metric) -> list[str]:
    return [s.labels["le"] for s in family.samples if "le" in s.labels]


async def test_same_families_as_vllm(
    tiny_folder: Path, answer_ids: list[int], shared_folder: Path
) -> None:
    theirs = _families((shared_folder / "metrics" / "vllm-0.30.0-busy.txt").read_text())
    async with serving(tiny_folder, FakeCore(answer_ids)) as served:
        ours = await _scrape(served)
    names = {name for name in theirs if name.startswith("vllm:")}
    assert names - set(ours) == LEFT_OUT
    assert {name for name in ours if name.startswith("vllm:")} == names - LEFT_OUT
    for name in names - LEFT_OUT - {"vllm:cache_config_info"}:
        assert _shape(ours[name]) == _shape(theirs[name]), name
        if "max_model_len" not in name and "tokens" not in name.removeprefix("vllm:iteration"):
            assert _limits(ours[name]) == _limits(theirs[name]), name
    info, known = (f["vllm:cache_config_info"].samples[0].labels for f in (ours, theirs))
    assert set(info) <= set(known)
    for name in ("process_resident_memory_bytes", "process_cpu_seconds", "python_info"):
        assert ours[name].type == theirs[name].type


async def test_values_after_requests(tiny_folder: Path, answer_ids: list[int]) -> None:
    core = FakeCore(answer_ids, num_cached_tokens=2, step_s=0.003)
    async with serving(tiny_folder, core) as served:
        for limit in (4, 6):
            body = {"prompt": "Hello", "max_tokens": limit}
            await served.http.post("/v1/completions", json=body)
        await served.http.post("/v1/completions", json={"prompt": "x", "n": 2, "max_tokens": 1})
        got = await _scrape(served)
    assert _value(got, "vllm:prompt_tokens_total") == 12
    assert _value(got, "vllm:prompt_tokens_cached_total") == 6
    assert _value(got, "vllm:prompt_tokens_by_source_total", source="local_compute") == 6
    assert _value(got, "vllm:prompt_tokens_by_source_total", source="local_cache_hit") == 6
    assert _value(got, "vllm:generation_tokens_total") == 12
    assert _value(got, "vllm:request_success_total", finished_reason="length") == 4
    assert _value(got, "vllm:request_success_total", finished_reason="repetition") == 0
    assert _value(got, "vllm:prefix_cache_queries_total") == 12
    assert _value(got, "vllm:prefix_cache_hits_total") == 6
    assert _value(got, "vllm:time_to_first_token_seconds_count") == 4
    assert _value(got, "vllm:inter_token_latency_seconds_count") == 8
    assert _value(got, "vllm:request_prompt_tokens_sum") == 12
    assert _value(got, "vllm:request_generation_tokens_sum") == 12
    assert _value(got, "vllm:request_params_max_tokens_sum") == 12
    assert _value(got, "vllm:request_params_n_sum") == 4
    assert _value(got, "vllm:request_params_n_count") == 3
    assert _value(got, "vllm:request_max_num_generation_tokens_sum") == 11
    assert _value(got, "vllm:request_prefill_kv_computed_tokens_sum") == 6
    assert _value(got, "vllm:iteration_tokens_total_sum") == 6 + 12
    assert _value(got, "vllm:kv_cache_usage_perc") == 0
    assert _value(got, "stoker_kv_free_blocks") == NUM_BLOCKS - 1
    queue = _value(got, "vllm:request_queue_time_seconds_sum")
    decode = _value(got, "vllm:request_decode_time_seconds_sum")
    inference = _value(got, "vllm:request_inference_time_seconds_sum")
    prefill = _value(got, "vllm:request_prefill_time_seconds_sum")
    e2e = _value(got, "vllm:e2e_request_latency_seconds_sum")
    assert abs(inference - prefill - decode) < 1e-6
    assert 0 <= queue + inference <= e2e + 0.01


async def test_aborted_request_is_counted(tiny_folder: Path, answer_ids: list[int]) -> None:
    async with serving(tiny_folder, FakeCore(answer_ids, step_s=0.02)) as served:
        stream = await served.openai.completions.create(model=MODEL, prompt="a", stream=True)
        await anext(stream)
        await stream.close()
        await until(lambda: len(served.core.aborted) == 1)
        got = await _scrape(served)
    assert _value(got, "vllm:request_success_total", finished_reason="abort") == 1
    assert _value(got, "vllm:e2e_request_latency_seconds_count") == 0


def test_gauges_show_the_last_step() -> None:
    registry = create_registry()
    metrics = EngineMetrics(registry, MODEL, CacheConfig(), [READY])
    state = SchedulerStats(
        num_running_reqs=3,
        num_waiting_reqs=2,
        kv_cache_usage=0.5,
        num_free_blocks=32,
        num_cached_blocks=7,
        num_preemptions_delta=2,
    )
    labels = {"model_name": MODEL, "engine": "0"}
    metrics.begin([READY])
    assert registry.get_sample_value("stoker_kv_free_blocks", labels) == 64
    for _ in range(2):
        metrics.record(state, IterationStats())
    expected = {
        "vllm:num_requests_running": 3,
        "vllm:num_requests_waiting": 2,
        "vllm:kv_cache_usage_perc": 0.5,
        "vllm:num_preemptions_total": 4,
        "stoker_kv_cached_blocks": 7,
        "stoker_kv_free_blocks": 32,
        "vllm:iteration_tokens_total_count": 0,
    }
    for name, value in expected.items():
        assert registry.get_sample_value(name, labels) == value, name
    waiting = {**labels, "reason": "capacity"}
    assert registry.get_sample_value("vllm:num_requests_waiting_by_reason", waiting) == 2


def test_graphs_are_counted_where_a_device_records_them() -> None:
    registry = create_registry()
    metrics = EngineMetrics(registry, MODEL, CacheConfig(), [READY])
    metrics.record(SchedulerStats(), IterationStats())
    assert b"stoker_device_steps" not in generate_latest(registry)
    graphs = GraphStats(5, {"FULL": 3, "PIECEWISE": 1}, 40, 6)
    for _ in range(2):
        metrics.record(SchedulerStats(graphs=graphs), IterationStats())
    sample = read_sample(generate_latest(registry).decode(), 0.0)
    assert sample is not None
    assert (sample.device_steps, sample.graph_steps) == (10, 8)
    assert (sample.graph_tokens, sample.graph_padding_tokens) == (80, 12)


def test_token_buckets_end_at_the_context() -> None:
    assert token_buckets(512) == (1, 2, 5, 10, 20, 50, 100, 200, 500)
    assert token_buckets(8192)[-2:] == (2000, 5000)
    assert token_buckets(2) == (1, 2)


@given(st.lists(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 1.0, 1.5, 2.0, 7.0, math.inf]))))
def test_values_of_a_step_count_as_those_seen_one_by_one(steps: list[list[float]]) -> None:
    def made(kind: type[Histogram]) -> tuple[Histogram, CollectorRegistry]:
        registry = CollectorRegistry()
        family = kind("seen", "What was seen.", ["engine"], registry=registry, buckets=(0, 1, 2))
        return family.labels("0"), registry

    one_by_one, first = made(Histogram)
    together, second = made(StepHistogram)
    assert isinstance(together, StepHistogram)
    for step in steps:
        together.observe_all(step)
        for value in step:
            one_by_one.observe(value)
    pattern = re.compile(rb"^seen_created.*$", re.MULTILINE)
    assert pattern.sub(b"", generate_latest(first)) == pattern.sub(b"", generate_latest(second))
