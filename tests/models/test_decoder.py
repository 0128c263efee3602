"""Our decoder against transformers' models on tiny random weights, in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.errors import CorruptModelError, ModelError
from engine.kernels.kernel_set import ModelStep, create_kernel_set
from engine.kernels.step_batch import StepBatch
from engine.kv_sizing import group_layers
from engine.model_config import ModelConfig
from engine.models.registry import kernel_sets_of, load_weights, model_class
from engine.worker.kv_cache import cache_spec
from tests.kernels.native_models import GEMMA2, GPT_OSS, MIXTRAL, QWEN3_MOE
from tests.models.tiny_models import (
    LINEAR_ROPE,
    LLAMA3_ROPE,
    YARN_ROPE,
    save_seeing_gemma,
    save_tiny_llama,
    save_tiny_model,
)
from tests.worker.driver import engine_config

GEMMA3: dict[str, Any] = {
    "family": "Gemma3",
    "num_hidden_layers": 7,
    "head_dim": 16,
    "sliding_window": 9,
    "layer_types": [*["sliding_attention"] * 2, "full_attention"] * 2 + ["sliding_attention"],
    "tie_word_embeddings": True,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "llama3 rope": {"rope_parameters": LLAMA3_ROPE},
    "yarn rope": {"rope_parameters": YARN_ROPE},
    "linear rope": {"rope_parameters": LINEAR_ROPE},
    "dynamic rope": {"rope_parameters": {**LINEAR_ROPE, "rope_type": "dynamic"}},
    "wide heads": {"head_dim": 32},
    "one kv head": {"num_key_value_heads": 1},
    "mistral": {"family": "Mistral", "sliding_window": None},
    "mistral with a window": {"family": "Mistral", "sliding_window": 11},
    "qwen2": {"family": "Qwen2"},
    "qwen2 with windows": {
        "family": "Qwen2",
        "use_sliding_window": True,
        "sliding_window": 24,
        "max_window_layers": 1,
    },
    "qwen3": {"family": "Qwen3", "head_dim": 24},
    "gemma2": {**GEMMA2, "head_dim": 16},
    "gemma2 without caps": {
        **GEMMA2,
        "head_dim": 16,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    },
    "mixtral": MIXTRAL,
    "mixtral with a window": {**MIXTRAL, "sliding_window": 11, "num_local_experts": 2},
    "qwen3 moe": {**QWEN3_MOE, "head_dim": 24},
    "qwen3 moe, normalised": {**QWEN3_MOE, "head_dim": 16, "norm_topk_prob": True},
    "gpt-oss": {**GPT_OSS, "head_dim": 16},
    "gpt-oss, yarn": {**GPT_OSS, "head_dim": 16, "rope_parameters": YARN_ROPE},
    "gemma3": GEMMA3,
    "gemma3 scaled": {
        **GEMMA3,
        "query_pre_attn_scalar": 40,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 50_000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 7_000.0},
        },
    },
}


pytestmark = pytest.mark.usefixtures("one_thread")


def load(folder: Path, block_size: int) -> ModelStep:
    config = engine_config(folder, block_size=block_size, max_model_len=256)
    cpu = torch.device("cpu")
    weights = load_weights(config.model, torch.float32, cpu, lambda done, total: None)
    build = model_class()
    kernels = create_kernel_set("reference")
    return build(config.model, weights, kernels, 256, cache_spec(config))


def logits_of_all(
    model: ModelStep, prompts: list[list[int]], block_size: int, chunk: int, num_groups: int = 1
) -> list[torch.Tensor]:
    """Logits of every token; all prompts in each step, `chunk` tokens of each at a time."""
    width = -(-max(len(prompt) for prompt in prompts) // block_size)
    count = num_groups * len(prompts) * width
    cache = model.create_kv_cache(count + 1)
    order = np.random.default_rng(3).permutation(count) + 1
    table = order.reshape(num_groups, len(prompts), width)
    parts: list[list[torch.Tensor]] = [[] for _ in prompts]
    for start in range(0, max(len(prompt) for prompt in prompts), chunk):
        spans = [(n, p[start : start + chunk]) for n, p in enumerate(prompts) if len(p) > start]
        positions = [np.arange(start, start + len(tokens)) for _, tokens in spans]
        lengths = [len(tokens) for _, tokens in spans]
        slots = [
            table[:, n, p // block_size] * block_size + p % block_size
            for (n, _), p in zip(spans, positions, strict=True)
        ]
        batch = StepBatch(
            token_ids=np.concatenate([np.array(tokens) for _, tokens in spans]),
            positions=np.concatenate(positions),
            slot_mapping=np.concatenate(slots, axis=1),
            query_start_loc=np.concatenate(([0], np.cumsum(lengths))),
            num_computed=np.full(len(spans), start),
            block_table=table[:, [n for n, _ in spans]],
            logits_rows=np.arange(sum(lengths)),
        )
        rows = torch.split(model.forward(batch, cache), lengths)
        for (n, _), part in zip(spans, rows, strict=True):
            parts[n].append(part)
    return [torch.cat(part) for part in parts]


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers(variant: str, tmp_path: Path) -> None:
    oracle = save_tiny_model(tmp_path, **{"family": "Llama", **VARIANTS[variant]})
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 199, n).tolist() for n in (1, 37, 120, 64)]
    with torch.inference_mode():
        expected = [oracle(torch.tensor([prompt])).logits[0] for prompt in prompts]
    windows = ModelConfig.from_folder(tmp_path, "tiny").layer_windows
    num_groups = len(group_layers(windows))
    for block_size in (4, 16):
        model = load(tmp_path, block_size)
        for chunk in (1, 13, 200):
            batched = logits_of_all(model, prompts, block_size, chunk, num_groups)
            for result, wanted in zip(batched, expected, strict=True):
                torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-4)
        (alone,) = logits_of_all(model, [prompts[1]], block_size, 200, num_groups)
        torch.testing.assert_close(alone, expected[1], rtol=1e-4, atol=1e-4)


def test_the_text_part_of_a_model_that_sees(tmp_path: Path) -> None:
    """Gemma 3 4b and up: nested config.json, prefixed names, and a part that is left out."""
    text = {name: value for name, value in GEMMA3.items() if name != "family"}
    oracle = save_seeing_gemma(tmp_path, **text)
    prompt = np.random.default_rng(0).integers(0, 190, 50).tolist()
    with torch.inference_mode():
        expected = oracle(input_ids=torch.tensor([prompt])).logits[0]
    groups = group_layers(ModelConfig.from_folder(tmp_path, "tiny").layer_windows)
    (result,) = logits_of_all(load(tmp_path, 16), [prompt], 16, 20, len(groups))
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


def test_only_the_rows_asked_for_get_logits(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    model = load(tmp_path, 16)
    tokens = np.arange(10)
    for rows in ([], [9], [2, 9]):
        batch = StepBatch(
            token_ids=tokens,
            positions=tokens,
            slot_mapping=tokens[None] + 16,
            query_start_loc=np.array([0, 10]),
            num_computed=np.array([0]),
            block_table=np.array([[[1]]]),
            logits_rows=np.array(rows, dtype=np.int64),
        )
        logits = model.forward(batch, model.create_kv_cache(2))
        assert logits.shape == (len(rows), 199)
        assert logits.dtype == torch.float32


def test_weight_bytes_are_those_of_the_parameters(tmp_path: Path) -> None:
    oracle = save_tiny_llama(tmp_path)
    expected = sum(p.numel() for p in oracle.parameters()) * 4
    assert load(tmp_path, 16).weight_bytes == expected


def test_a_missing_parameter_is_named(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path, mlp_bias=False)
    change_config(tmp_path, mlp_bias=True)
    with pytest.raises(CorruptModelError, match=r"lacks 9 parameters.*layers\.0\.mlp.*bias"):
        load(tmp_path, 16)


def test_a_surplus_parameter_is_refused(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path, attention_bias=True)
    change_config(tmp_path, attention_bias=False)
    with pytest.raises(CorruptModelError, match=r"holds 12 parameters.*does not use.*k_proj\.bias"):
        load(tmp_path, 16)


def test_a_wrong_shape_is_named(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    change_config(tmp_path, intermediate_size=97)
    with pytest.raises(CorruptModelError, match=r"mlp\.\w+_proj\.weight has shape .*96.*97"):
        load(tmp_path, 16)


def test_an_unknown_architecture_is_named() -> None:
    with pytest.raises(ModelError, match="MambaForCausalLM"):
        kernel_sets_of("MambaForCausalLM")


def test_shards_are_reported_one_by_one(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path).save_pretrained(tmp_path, max_shard_size="100KB")
    (tmp_path / "model.safetensors").unlink(missing_ok=True)
    seen: list[tuple[int, int]] = []
    config = ModelConfig.from_folder(tmp_path, "tiny")
    load_weights(config, torch.float32, torch.device("cpu"), lambda *state: seen.append(state))
    assert len(seen) > 3
    assert seen == [(done, len(seen) - 1) for done in range(len(seen))]


def change_config(folder: Path, **changes: Any) -> None:
    import json

    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
