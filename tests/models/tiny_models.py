"""Tiny random models made by transformers, which is also the oracle for their logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}


def save_tiny_llama(folder: Path, **changes: Any) -> Any:
    """Write a safetensors folder and return the transformers model, in float32."""
    return save_tiny_model(folder, "Llama", **changes)


def save_tiny_model(folder: Path, family: str, **changes: Any) -> Any:
    """The same for `family`ForCausalLM, with the configuration class that goes with it."""
    torch.manual_seed(7)
    settings: dict[str, Any] = {
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
        **changes,
    }
    model_class: Any = getattr(transformers, f"{family}ForCausalLM")
    model = model_class(model_class.config_class(**settings))
    model.train(False)
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:  # transformers starts them at 0 and 1
            torch.nn.init.normal_(parameter, mean=0.5, std=0.3)
    model.save_pretrained(folder)
    return model
