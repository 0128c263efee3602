"""EngineCore with the real worker on a real (tiny, random) model, in this process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.core.engine_core import EngineCore
from engine.core.executor import create_executor
from engine.errors import ConfigError, CorruptModelError, MemoryBudgetError
from engine.messages import EngineCoreRequest, FinishReason, TokenLogprobs
from engine.sampling_params import SamplingParams
from tests.core.conftest import engine_config
from tests.worker.kernel_choices import KernelChoice, Probe


def request(request_id: str, prompt: list[int], max_tokens: int) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(temperature=0.0, max_tokens=max_tokens),
        arrival_time=0.0,
    )


@dataclass
class Results:
    """What happened while a core worked off its requests."""

    texts: dict[str, list[int]]
    num_preemptions: int = 0
    num_cached_tokens: int = 0


def run(core: EngineCore, requests: list[EngineCoreRequest]) -> Results:
    for item in requests:
        core.add_request(item)
    results = Results({item.request_id: [] for item in requests})
    while not core.is_idle:
        message = core.step()
        assert message.scheduler_stats is not None
        results.num_preemptions += message.scheduler_stats.num_preemptions_delta
        results.num_cached_tokens += message.scheduler_stats.prefix_cache_hits_delta
        for output in message.outputs:
            results.texts[output.request_id] += output.new_token_ids
    return results


def run_all(core: EngineCore, requests: list[EngineCoreRequest]) -> dict[str, list[int]]:
    return run(core, requests).texts


def probe(core: EngineCore) -> Probe:
    def what_follows(tokens: list[int]) -> TokenLogprobs:
        params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=50)
        core.add_request(EngineCoreRequest("probe", tokens, params, arrival_time=0.0))
        while not (outputs := core.step().outputs):
            pass
        assert outputs[0].logprobs is not None
        return outputs[0].logprobs[0]

    return what_follows


def assert_same_texts(
    choice: KernelChoice,
    found: dict[str, list[int]],
    wanted: dict[str, list[int]],
    requests: list[EngineCoreRequest],
    core: EngineCore,
) -> None:
    """Of two arrangements; `core` is an idle one with room."""
    assert found.keys() == wanted.keys()
    for item in requests:
        name = item.request_id
        choice.assert_same(found[name], wanted[name], item.prompt_token_ids, probe(core))


def prompts() -> list[EngineCoreRequest]:
    return [
        request(str(i), [(7 * i + j * j) % 250 for j in range(5 + 9 * i)], 40) for i in range(6)
    ]


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
    object.__setattr__(config.parallel, "executor_backend", "ray")
    try:
        with pytest.raises(ConfigError, match="Unknown executor backend 'ray'"):
            create_executor(config)
    finally:
        object.__setattr__(config.parallel, "executor_backend", "uni")
