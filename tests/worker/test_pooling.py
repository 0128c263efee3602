"""Pooling through EngineCore (scheduler, runner, model), with every choice of kernels.

Against transformers' hidden states, as near as the numbers allow; and against itself, alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.core.engine_core import EngineCore
from engine.frontend.tokenizer import Tokenizer
from engine.messages import EngineCoreOutput, EngineCoreRequest, FinishReason
from engine.pooling_params import PoolingParams
from engine.sampling_params import SamplingParams, StructuredOutputsParams
from tests.core.core_runs import probe
from tests.kernels.native_models import save_rounded
from tests.worker.driver import engine_config
from tests.worker.kernel_choices import KernelChoice

Vector = NDArray[np.float32]
LAST, MEAN = PoolingParams(pooling_type="LAST"), PoolingParams(pooling_type="MEAN")
PROMPTS = [[(7 * i * i + 3 * n + i) % 190 + 3 for i in range(n)] for n in (1, 16, 17, 40, 63)]

# Of the entries of a vector of length 1: how far rounding takes them from transformers'.
TOLERANCES = {
    "reference-float32": 2e-5,
    "reference-bfloat16": 0.005,
    "reference-int8": 0.025,
    "native-bfloat16": 0.005,
    "native-int8": 0.025,
    "native-int4": 0.15,
}


@dataclass(frozen=True)
class Tiny:
    """A model folder and transformers' model of it."""

    folder: Path
    oracle: Any

    def expected(self, prompt: list[int], pooling: PoolingParams) -> Vector:
        with torch.inference_mode():
            hidden = self.oracle.model(torch.tensor([prompt])).last_hidden_state[0].double()
        vector = hidden.mean(0) if pooling == MEAN else hidden[-1]
        result: Vector = (vector / vector.norm()).float().numpy()
        return result


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return Tiny(folder, save_rounded(folder))


def make_core(
    folder: Path,
    choice: KernelChoice,
    *,
    budget: int = 2048,
    caching: bool = True,
    blocks: int = 200,
) -> EngineCore:
    config = engine_config(folder, max_model_len=128, **choice.flags)
    return EngineCore(
        dataclasses.replace(
            config,
            cache=dataclasses.replace(
                config.cache, enable_prefix_caching=caching, num_gpu_blocks_override=blocks
            ),
            scheduler=dataclasses.replace(config.scheduler, max_num_batched_tokens=budget),
        )
    )


def pooled(request_id: str, prompt: list[int], pooling: PoolingParams) -> EngineCoreRequest:
    return EngineCoreRequest(request_id, prompt, SamplingParams(), 0.0, pooling=pooling)


def generated(request_id: str, prompt: list[int], num_tokens: int = 8) -> EngineCoreRequest:
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens)
    return EngineCoreRequest(request_id, prompt, params, 0.0)


@dataclass
class Results:
    """What every request got."""

    vectors: dict[str, Vector] = field(default_factory=dict)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    last: dict[str, EngineCoreOutput] = field(default_factory=dict)

    def add(self, output: EngineCoreOutput) -> None:
        self.last[output.request_id] = output
        self.tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
        if output.pooling_output is not None:
            self.vectors[output.request_id] = np.frombuffer(output.pooling_output, "<f4")


def run(core: EngineCore, requests: Sequence[EngineCoreRequest]) -> Results:
    for request in requests:
        core.add_request(request)
    results = Results()
    while not core.is_idle:
        for output in core.step().outputs:
            results.add(output)
    assert core.scheduler.running == []
    assert core.scheduler.kv_cache_manager.usage == 0
    return results


def assert_close(actual: Vector, expected: Vector, choice: KernelChoice) -> None:
    np.testing.assert_allclose(actual, expected, atol=TOLERANCES[str(choice)])


@pytest.mark.parametrize("pooling", [LAST, MEAN], ids=["last", "mean"])
@pytest.mark.parametrize("budget", [2048, 7], ids=["whole", "chunked"])
def test_vectors_are_transformers_hidden_states(
    tiny: Tiny, pooling: PoolingParams, budget: int, choice: KernelChoice
) -> None:
    core = make_core(tiny.folder, choice, budget=budget, caching=False)
    requests = [pooled(str(n), prompt, pooling) for n, prompt in enumerate(PROMPTS)]
    together = run(core, requests)
    for number, prompt in enumerate(PROMPTS):
        (alone,) = run(core, [pooled("alone", prompt, pooling)]).vectors.values()
        assert_close(together.vectors[str(number)], tiny.expected(prompt, pooling), choice)
        assert_close(alone, tiny.expected(prompt, pooling), choice)
        if not choice.tie:  # sums of whole vectors are rounded at other places
            np.testing.assert_allclose(together.vectors[str(number)], alone, atol=2e-6)
        assert np.linalg.norm(alone) == pytest.approx(1, abs=1e-6)
    assert {output.finish_reason for output in together.last.values()} == {FinishReason.STOP}
    assert set(map(tuple, together.tokens.values())) == {()}


@pytest.mark.parametrize("pooling", [LAST, MEAN], ids=["last", "mean"])
def test_layers_with_sliding_windows(
    tmp_path: Path, pooling: PoolingParams, choice: KernelChoice
) -> None:
    oracle = save_rounded(
        tmp_path,
        "Gemma3",
        sliding_window=9,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        tie_word_embeddings=True,
    )
    results = run(make_core(tmp_path, choice, budget=11), [pooled("a", PROMPTS[4], pooling)])
    assert_close(results.vectors["a"], Tiny(tmp_path, oracle).expected(PROMPTS[4], pooling), choice)


@pytest.mark.parametrize("budget", [2048, 20], ids=["whole", "chunked"])
def test_generating_and_pooling_requests_do_not_disturb_each_other(
    tiny: Tiny, budget: int, choice: KernelChoice
) -> None:
    core, prompts = make_core(tiny.folder, choice, budget=budget), PROMPTS[::2]
    alone = [run(core, [generated("g", prompt)]).tokens["g"] for prompt in prompts]
    core.reset_prefix_cache()
    requests = []
    for number, prompt in enumerate(prompts):
        requests.append(generated(f"g{number}", prompt))
        requests.append(pooled(f"l{number}", [*prompt, 5], LAST))
        requests.append(pooled(f"m{number}", prompt, MEAN))
    results = run(core, requests)
    for number, prompt in enumerate(prompts):
        choice.assert_same(results.tokens[f"g{number}"], alone[number], prompt, probe(core))
        assert_close(results.vectors[f"l{number}"], tiny.expected([*prompt, 5], LAST), choice)
        assert_close(results.vectors[f"m{number}"], tiny.expected(prompt, MEAN), choice)


def test_prefixes_shared_within_one_step(tiny: Tiny, choice: KernelChoice) -> None:
    # Each request reads blocks that the one before it, of the other kind, fills in the same step.
    core, prompt = make_core(tiny.folder, choice), PROMPTS[4]
    other = make_core(tiny.folder, choice)
    expected = run(other, [generated("g", [*prompt, 7])]).tokens["g"]
    requests = [
        pooled("p0", prompt[:40], LAST),
        generated("g1", prompt),
        pooled("p2", [*prompt, 9], LAST),
        generated("g3", [*prompt, 7]),
    ]
    results = run(core, requests)
    assert_close(results.vectors["p0"], tiny.expected(prompt[:40], LAST), choice)
    assert_close(results.vectors["p2"], tiny.expected([*prompt, 9], LAST), choice)
    choice.assert_same(results.tokens["g3"], expected, [*prompt, 7], probe(other))


def test_last_token_pooling_uses_the_prefix_cache_and_mean_pooling_does_not(
    tiny: Tiny, choice: KernelChoice
) -> None:
    core, prompt = make_core(tiny.folder, choice), PROMPTS[4]
    run(core, [generated("first", prompt)])
    for pooling, num_cached in ((LAST, 48), (MEAN, 0)):
        results = run(core, [pooled("again", prompt, pooling)])
        assert_close(results.vectors["again"], tiny.expected(prompt, pooling), choice)
        stats = results.last["again"].prefill_stats
        assert stats is not None
        assert (stats.num_prompt_tokens, stats.num_cached_tokens) == (63, num_cached)


def test_a_prompt_may_fill_the_whole_context(tiny: Tiny, choice: KernelChoice) -> None:
    prompt = [n % 150 + 3 for n in range(128)]
    for budget in (2048, 50):
        core = make_core(tiny.folder, choice, budget=budget)
        for pooling in (LAST, MEAN):
            vector = run(core, [pooled("full", prompt, pooling)]).vectors["full"]
            assert_close(vector, tiny.expected(prompt, pooling), choice)


def test_a_preempted_prompt_is_pooled_anew(tiny: Tiny, choice: KernelChoice) -> None:
    core = make_core(tiny.folder, choice, budget=9, caching=False, blocks=9)  # 8 blocks of 16
    core.scheduler.config = dataclasses.replace(core.scheduler.config, reserve_full_isl=False)
    requests = [generated(f"g{number}", PROMPTS[1], 20) for number in range(3)]
    requests += [pooled("m", PROMPTS[4], MEAN), pooled("l", PROMPTS[4], LAST)]
    results = run(core, requests)
    assert results.last["m"].num_preemptions > 0
    assert_close(results.vectors["m"], tiny.expected(PROMPTS[4], MEAN), choice)
    assert_close(results.vectors["l"], tiny.expected(PROMPTS[4], LAST), choice)


def test_an_aborted_prompt_leaves_nothing_behind(tiny: Tiny, choice: KernelChoice) -> None:
    core = make_core(tiny.folder, choice, budget=10)
    core.add_request(pooled("a", PROMPTS[4], MEAN))
    core.step()
    assert core.abort_requests(["a"]) == 1
    results = run(core, [pooled("a", PROMPTS[3], MEAN)])  # the same name again
    assert_close(results.vectors["a"], tiny.expected(PROMPTS[3], MEAN), choice)


def test_structured_output_on_both_sides_of_pooling(folder: Path, choice: KernelChoice) -> None:
    core, tokenizer = make_core(folder, choice), Tokenizer.from_folder(folder)
    core.scheduler.config = dataclasses.replace(
        core.scheduler.config, long_prefill_token_threshold=4
    )
    grammar = StructuredOutputsParams(choice=("yellow", "orange"))
    params = SamplingParams(temperature=0.0, max_tokens=20, structured_outputs=grammar)
    results, orders = Results(), set()

    def step() -> None:
        for output in core.step().outputs:
            results.add(output)
        orders.add("".join(request.request_id[0] for request in core.scheduler.running))

    core.add_request(EngineCoreRequest("g0", [65, 66], params, 0.0, (256,)))
    while not core.scheduler.running:  # the grammar is being compiled
        step()
    core.add_request(pooled("p", PROMPTS[4], MEAN))
    step()
    core.add_request(EngineCoreRequest("g1", [80, 81, 82], params, 0.0, (256,)))
    while not core.is_idle:
        step()
    core.shutdown()
    assert "gpg" in orders
    for name in ("g0", "g1"):
        text = tokenizer.decode(results.tokens[name], skip_special_tokens=True)
        assert text in ("yellow", "orange")
    assert len(results.vectors) == 1
