"""The text decoder of models that also see, served without their towers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from engine.args import EngineArgs
from engine.core.engine_core import EngineCore
from engine.env import HostDevice
from engine.model_config import ModelConfig
from engine.model_support import find_support
from tests.worker.greedy import engine_tokens, tokens_without_cache

TEXT: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "depth": 1,
    "num_attention_heads": 2,
    "num_heads": 2,
    "image_size": 28,
    "patch_size": 14,
    "out_hidden_size": 64,
    "embed_dim": 32,
    "fullatt_block_indexes": [0],
    "deepstack_visual_indexes": [0],
}
MROPE = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llava": ("stoker", {"model_type": "llama"}),
    "Mistral3": ("stoker", {"model_type": "mistral"}),
    "Qwen2_5_VL": ("stoker", {"rope_parameters": MROPE, "use_sliding_window": False}),
    "Qwen3VL": ("stoker", {"rope_parameters": MROPE}),
    "InternVL": ("stoker", {"model_type": "qwen2"}),
    "SmolVLM": ("stoker", {"model_type": "llama"}),
    "Idefics3": ("stoker", {"model_type": "llama"}),
    "Qwen3_5": (
        "transformers",
        {
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 12,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        },
    ),
}

pytestmark = pytest.mark.usefixtures("one_thread")


def save_seeing(folder: Path, family: str, changes: dict[str, Any]) -> Any:
    """transformers' model, tower included, with all sizes that its configurations know."""
    model_class: Any = getattr(transformers, f"{family}ForConditionalGeneration")
    known = model_class.config_class().vision_config.to_dict()
    config = model_class.config_class(
        text_config={**TEXT, **changes},
        vision_config={key: value for key, value in TOWER.items() if key in known},
        tie_word_embeddings=False,
    )
    torch.manual_seed(5)
    model = model_class(config).float()
    model.train(False)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("family", MODELS)
def test_text_is_that_of_the_whole_model(family: str, tmp_path: Path) -> None:
    implementation, changes = MODELS[family]
    oracle = save_seeing(tmp_path, family, changes)
    prompts = [list(range(3, 40)), list(range(50, 60))]
    wanted = [tokens_without_cache(oracle, prompt, 8) for prompt in prompts]
    model = ModelConfig.from_folder(tmp_path, "tiny")
    args = EngineArgs(
        dtype="float32",
        kv_cache_memory_bytes=1 << 22,
        max_model_len=96,
        num_threads=1,
        max_num_batched_tokens=24,
    )
    core = EngineCore(args.create_engine_config(model, HostDevice("cpu", "cpu", None)))
    assert engine_tokens(core, prompts, 8) == wanted
    core.shutdown()
    assert model.implementation == implementation
    assert find_support(oracle.config.to_dict()).implementation == implementation


def test_sizes_that_the_text_part_leaves_out_are_those_of_its_family() -> None:
    config = transformers.LlavaConfig(text_config={"model_type": "llama", "vocab_size": 32_064})
    raw = config.to_dict()
    raw["text_config"] = {"model_type": "llama", "vocab_size": 32_064}
    raw["architectures"] = ["LlavaForConditionalGeneration"]
    found = ModelConfig.from_raw(raw, {}, Path(), "llava")
    shape = (found.architecture, found.vocab_size, found.hidden_size, found.intermediate_size)
    assert shape == ("LlamaForCausalLM", 32_064, 4096, 11_008)
    wanted = transformers.LlamaConfig()
    assert (found.num_hidden_layers, found.num_attention_heads, found.num_key_value_heads) == (
        wanted.num_hidden_layers,
        wanted.num_attention_heads,
        wanted.num_key_value_heads,
    )
