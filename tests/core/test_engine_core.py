"""EngineCore with the real worker on a real (tiny, random) model, in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.core.engine_core import EngineCore
from engine.core.executor import create_executor
from engine.errors import ConfigError, CorruptModelError, MemoryBudgetError
from engine.messages import EngineCoreRequest, FinishReason
from engine.sampling_params import SamplingParams
from tests.core.conftest import engine_config


def request(request_id: str, prompt: list[int], max_tokens: int) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(temperature=0.0, max_tokens=max_tokens),
        arrival_time=0.0,
    )


def run_all(core: EngineCore, requests: list[EngineCoreRequest]) -> dict[str, list[int]]:
    for item in requests:
        core.add_request(item)
    texts: dict[str, list[int]] = {item.request_id: [] for item in requests}
    while not core.is_idle:
        for output in core.step().outputs:
            texts[output.request_id] += output.new_token_ids
    return texts


def prompts() -> list[EngineCoreRequest]:
    return [
        request(str(i), [(7 * i + j * j) % 250 for j in range(5 + 9 * i)], 40) for i in range(6)
    ]


def test_preemption_under_a_tiny_cache_changes_no_output(tiny_folder: Path) -> None:
    roomy = EngineCore(engine_config(tiny_folder, max_model_len=128))
    # 12 usable blocks of 16 tokens for six requests that grow to 45..90 tokens each.
    tight = EngineCore(engine_config(tiny_folder, max_model_len=128, num_gpu_blocks_override=13))
    expected = run_all(roomy, prompts())
    actual: dict[str, list[int]] = {item.request_id: [] for item in prompts()}
    preemptions = 0
    for item in prompts():
        tight.add_request(item)
    while not tight.is_idle:
        message = tight.step()
        assert message.scheduler_stats is not None
        preemptions += message.scheduler_stats.num_preemptions_delta
        for output in message.outputs:
            actual[output.request_id] += output.new_token_ids
    assert preemptions > 0
    assert actual == expected
    assert all(len(tokens) == 40 for tokens in expected.values())


def test_chunks_and_cached_prefixes_change_no_output(tiny_folder: Path) -> None:
    whole = EngineCore(engine_config(tiny_folder, enable_prefix_caching=False))
    chunked = EngineCore(engine_config(tiny_folder, max_num_batched_tokens=7, block_size=4))
    expected = run_all(whole, prompts())
    assert run_all(chunked, prompts()) == expected
    again = run_all(chunked, prompts())  # now from the prefix cache
    assert again == expected


def test_abort_frees_the_cache_and_reports_it(tiny_folder: Path) -> None:
    core = EngineCore(engine_config(tiny_folder))
    core.add_request(request("a", [1, 2, 3], 100))
    stats = core.step().scheduler_stats
    assert stats is not None
    assert stats.kv_cache_usage > 0
    assert core.abort_requests(["a", "unknown"]) == 1
    stats = core.stats_message().scheduler_stats
    assert stats is not None
    assert (stats.kv_cache_usage, stats.num_running_reqs) == (0.0, 0)
    assert core.is_idle


def test_the_end_is_said_with_its_reason(tiny_folder: Path) -> None:
    core = EngineCore(engine_config(tiny_folder))
    core.add_request(request("a", [1, 2, 3], 1))
    (output,) = core.step().outputs
    assert output.finish_reason == FinishReason.LENGTH
    assert output.prefill_stats is not None
    assert output.prefill_stats.num_prompt_tokens == 3


def test_a_length_that_does_not_fit_is_refused_or_fitted(tiny_folder: Path) -> None:
    # One block of 16 tokens is 2 layers x 2 heads x 8 x 2 x 4 bytes x 16 = 4096 bytes.
    with pytest.raises(MemoryBudgetError, match="estimated maximum model length is 112"):
        EngineCore(engine_config(tiny_folder, kv_cache_memory_bytes=8 * 4096))
    core = EngineCore(engine_config(tiny_folder, kv_cache_memory_bytes=8 * 4096, max_model_len=-1))
    assert core.ready_message.max_model_len == 112
    assert core.ready_message.num_gpu_blocks == 8
    with pytest.raises(MemoryBudgetError, match="--num-gpu-blocks-override 9000"):
        EngineCore(engine_config(tiny_folder, num_gpu_blocks_override=9000))


def test_broken_weights_and_unknown_executors_are_named(tmp_path: Path, tiny_folder: Path) -> None:
    for path in tiny_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CorruptModelError, match=r"model\.safetensors"):
        EngineCore(engine_config(tmp_path))
    config = engine_config(tiny_folder)
    object.__setattr__(config.parallel, "executor_backend", "ray")
    try:
        with pytest.raises(ConfigError, match="Unknown executor backend 'ray'"):
            create_executor(config)
    finally:
        object.__setattr__(config.parallel, "executor_backend", "uni")
