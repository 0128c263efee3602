"""Tiny random models made by transformers, which is also the oracle for their logits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}

_SETTINGS: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "initializer_range": 0.15,
    "eos_token_id": 2,
}


def save_tiny_llama(folder: Path, **changes: Any) -> Any:
    """Write a safetensors folder and return the transformers model, in float32."""
    return save_tiny_model(folder, "Llama", **changes)


def save_tiny_model(folder: Path, family: str, **changes: Any) -> Any:
    """The same for `family`ForCausalLM, with the configuration class that goes with it."""
    model_class: Any = getattr(transformers, f"{family}ForCausalLM")
    config = model_class.config_class(**{**_SETTINGS, **changes})
    return _save(folder, model_class, config)


def save_seeing_gemma(
    folder: Path, *, image_size: int = 28, tokens_per_image: int = 4, **changes: Any
) -> Any:
    """A Gemma 3 with a vision tower; `changes` are settings of its text decoder. Images are tokens
    of the id 198.
    """
    vision = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": image_size,
        "patch_size": 14,
    }
    config = transformers.Gemma3Config(
        text_config={**_SETTINGS, **changes},
        vision_config=vision,
        mm_tokens_per_image=tokens_per_image,
        image_token_index=198,
    )
    return _save(folder, transformers.Gemma3ForConditionalGeneration, config)


def _save(folder: Path, model_class: Any, config: Any) -> Any:
    torch.manual_seed(7)
    model = model_class(config)
    model.train(False)
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:  # transformers starts them at 0 and 1
            torch.nn.init.normal_(parameter, mean=0.5, std=0.3)
        if "input_projection" in name:  # an image is to weigh as much as text
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    return model


def raise_channels(folder: Path, channels: Sequence[int], factor: float) -> None:
    """Norms before the layers' blocks give `factor` times as much in a few channels."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    has_sandwich_norms = any("pre_feedforward_layernorm" in name for name in weights)
    second = "pre_feedforward" if has_sandwich_norms else "post_attention"
    for name, weight in weights.items():
        if name.endswith(("input_layernorm.weight", f"{second}_layernorm.weight")):
            weight[list(channels)] = factor
    save_file(weights, path, {"format": "pt"})
