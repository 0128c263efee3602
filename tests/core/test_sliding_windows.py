"""Models with sliding windows through scheduler, cache and worker, against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.core.engine_core import EngineCore
from tests.core.conftest import engine_config
from tests.core.test_engine_core import request, run_all
from tests.models.tiny_models import save_tiny_model

FAMILIES: dict[str, dict[str, Any]] = {
    "Gemma3": {
        "num_hidden_layers": 6,
        "head_dim": 16,
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


@torch.inference_mode()
def greedy(model: Any, prompt: list[int]) -> list[int]:
    """Without transformers' own cache, which loses a token of the window after a long prompt."""
    tokens = list(prompt)
    for _ in range(NUM_TOKENS):
        logits = model(torch.tensor([tokens]), use_cache=False).logits
        tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunk", [24, 2048])
def test_a_tiny_cache_and_cached_prefixes_change_no_token(
    family: str, chunk: int, tmp_path: Path
) -> None:
    oracle = save_tiny_model(tmp_path, family, eos_token_id=None, **FAMILIES[family])
    expected = [greedy(oracle, prompt) for prompt in PROMPTS]
    flags: dict[str, Any] = {"max_model_len": 136, "max_num_batched_tokens": chunk}
    core = EngineCore(engine_config(tmp_path, num_gpu_blocks_override=NUM_BLOCKS[family], **flags))
    preemptions = hits = 0
    for turn in range(2):  # the second turn finds prefixes
        requests = [
            request(f"{turn}-{number}", prompt, NUM_TOKENS) for number, prompt in enumerate(PROMPTS)
        ]
        texts: dict[str, list[int]] = {item.request_id: [] for item in requests}
        for item in requests:
            core.add_request(item)
        while not core.is_idle:
            message = core.step()
            assert message.scheduler_stats is not None
            preemptions += message.scheduler_stats.num_preemptions_delta
            hits += message.scheduler_stats.prefix_cache_hits_delta
            for output in message.outputs:
                texts[output.request_id] += output.new_token_ids
        assert list(texts.values()) == expected
        assert core.scheduler.kv_cache_manager.usage == 0
    assert preemptions > 0
    assert hits > 0


def test_blocks_outside_the_window_are_given_back(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "Mistral", eos_token_id=None, sliding_window=16)
    core = EngineCore(engine_config(tmp_path, max_model_len=256, enable_prefix_caching=False))
    core.add_request(request("long", [1] * 200, 50))
    used = []
    while not core.is_idle:
        core.step()
        used.append(round(core.scheduler.kv_cache_manager.usage * (core.capacity.num_blocks - 1)))
    assert used[0] == 13  # the prompt in one step: 200 tokens in blocks of 16
    assert max(used[2:]) <= 3
    assert run_all(core, [request("again", [2] * 200, 3)])
