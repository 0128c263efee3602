"""LoRA adapters that peft makes and saves, with random weights, and runs as the oracle."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def save_adapter(model: Any, folder: Path, *, seed: int, **settings: Any) -> Any:
    """Write an adapter of `model` to `folder`; returns peft's model with it, in float32.

    `settings` are those of peft's LoraConfig. The adapter's weights are such that bf16 holds them.
    """
    peft: Any = pytest.importorskip("peft")
    torch.manual_seed(seed)
    config = peft.LoraConfig(
        **{"r": 8, "lora_alpha": 16, "target_modules": list(LINEARS), **settings},
        init_lora_weights=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by an old name
        adapted = peft.get_peft_model(copy.deepcopy(model), config)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            values = torch.randn_like(parameter) * 0.1
            parameter.data = values.to(torch.bfloat16).float()
    adapted.train(False)
    adapted.save_pretrained(folder)
    return adapted
