"""EngineCore with the real worker on a real (tiny, random) model, in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.core.engine_core import EngineCore
from engine.core.executor import create_executor
from engine.errors import ConfigError, CorruptModelError, MemoryBudgetError
from engine.messages import FinishReason
from tests.core.conftest import engine_config
from tests.core.core_runs import assert_same_texts, prompts, request, run, run_all
from tests.worker.kernel_choices import KernelChoice


def test_company_and_preemption_under_a_tiny_cache_change_no_output(
    wider_folder: Path, choice: KernelChoice
) -> None:
    flags = {"max_model_len": 128, **choice.flags}
    roomy = EngineCore(engine_config(wider_folder, enable_prefix_caching=False, **flags))
    # 12 usable blocks of 16 tokens for six requests that grow to 45..90 tokens each.
    tight = EngineCore(engine_config(wider_folder, num_gpu_blocks_override=13, **flags))
    expected = {item.request_id: run_all(roomy, [item])[item.request_id] for item in prompts()}
    together, preempted = run(roomy, prompts()), run(tight, prompts())
    assert (together.num_preemptions, preempted.num_preemptions > 0) == (0, True)
    for results in (together, preempted):
        assert_same_texts(choice, results.texts, expected, prompts(), roomy)
    assert all(len(tokens) == 40 for tokens in expected.values())
    assert len({tuple(tokens) for tokens in expected.values()}) == 6


def test_chunks_and_cached_prefixes_change_no_output(
    wider_folder: Path, choice: KernelChoice
) -> None:
    whole = EngineCore(engine_config(wider_folder, enable_prefix_caching=False, **choice.flags))
    block_size = min(choice.block_sizes)
    flags = {"max_num_batched_tokens": 7, "block_size": block_size, **choice.flags}
    chunked = EngineCore(engine_config(wider_folder, **flags))
    expected = run_all(whole, prompts())
    first, again = run(chunked, prompts()), run(chunked, prompts())
    assert again.num_cached_tokens >= 6 * block_size
    for results in (first, again):
        assert_same_texts(choice, results.texts, expected, prompts(), whole)


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
    object.__setattr__(config.parallel, "executor_backend", "fax")
    try:
        with pytest.raises(ConfigError, match="Unknown executor backend 'fax'"):
            create_executor(config)
    finally:
        object.__setattr__(config.parallel, "executor_backend", "uni")


def test_prompts_take_turns_on_native_kernels_alone(
    wider_folder: Path, choice: KernelChoice
) -> None:
    core = EngineCore(engine_config(wider_folder, **choice.flags))
    is_native = choice.kernels == "native"
    assert (core.ready_message.max_joint_prefill_tokens is not None) == is_native
    for name in "abc":
        core.add_request(request(name, [ord(name)] * 100, 4))
    assert [output.request_id for output in core.step().outputs] == list(
        "ab" if is_native else "abc"
    )
