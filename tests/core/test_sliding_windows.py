"""Models with sliding windows through scheduler, cache and worker, with every choice of kernels.

In float32 against transformers; the others against themselves alone, whole and undisturbed, and in
tests/kernels against the float32 ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.core.engine_core import EngineCore
from tests.core.conftest import engine_config
from tests.core.core_runs import assert_same_texts, request, run, run_all
from tests.kernels.native_models import save_rounded
from tests.worker.greedy import tokens_without_cache
from tests.worker.kernel_choices import FLOAT32, KernelChoice

FAMILIES: dict[str, dict[str, Any]] = {
    "Gemma3": {
        "num_hidden_layers": 6,
        "sliding_window": 20,
        "layer_types": [*["sliding_attention"] * 2, "full_attention"] * 2,
        "tie_word_embeddings": True,
    },
    "Mistral": {"sliding_window": 33},
}
NUM_BLOCKS = {"Gemma3": 40, "Mistral": 10}  # enough for one request, not for four
SHARED = [(11 * i) % 190 for i in range(70)]
PROMPTS = [[*SHARED, 5, 6, 7], [(7 * i * i) % 190 for i in range(90)], SHARED, [3, 1, 4, 1, 5]]
NUM_TOKENS = 40


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tiny_cache_and_cached_prefixes_change_no_token(
    family: str, tmp_path: Path, choice: KernelChoice
) -> None:
    oracle = save_rounded(tmp_path, family, eos_token_id=None, **FAMILIES[family])
    requests = [request(str(number), prompt, NUM_TOKENS) for number, prompt in enumerate(PROMPTS)]
    flags = {"max_model_len": 136, "kv_cache_memory_bytes": 8 << 20, **choice.flags}
    roomy = EngineCore(engine_config(tmp_path, enable_prefix_caching=False, **flags))
    expected = {item.request_id: run_all(roomy, [item])[item.request_id] for item in requests}
    if choice == FLOAT32:
        assert list(expected.values()) == [
            tokens_without_cache(oracle, prompt, NUM_TOKENS) for prompt in PROMPTS
        ]
    for chunk in (24, 2048):
        tight = {"num_gpu_blocks_override": NUM_BLOCKS[family], "max_num_batched_tokens": chunk}
        core = EngineCore(engine_config(tmp_path, **tight, **flags))
        turns = [run(core, requests), run(core, requests)]  # the second finds prefixes
        assert sum(results.num_preemptions for results in turns) > 0
        assert sum(results.num_cached_tokens for results in turns) > 0
        assert core.scheduler.kv_cache_manager.usage == 0
        for results in turns:
            assert_same_texts(choice, results.texts, expected, requests, roomy)


def test_blocks_outside_the_window_are_given_back(tmp_path: Path) -> None:
    save_rounded(tmp_path, "Mistral", eos_token_id=None, sliding_window=16)
    core = EngineCore(engine_config(tmp_path, max_model_len=256, enable_prefix_caching=False))
    core.add_request(request("long", [1] * 200, 50))
    used = []
    while not core.is_idle:
        core.step()
        used.append(round(core.scheduler.kv_cache_manager.usage * (core.capacity.num_blocks - 1)))
    assert used[0] == 13  # the prompt in one step: 200 tokens in blocks of 16
    assert max(used[2:]) <= 3
    assert run_all(core, [request("again", [2] * 200, 3)])
