"""Which code runs which architecture of config.json, found by name at run time."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch

from engine.errors import ModelError
from engine.kernels.kernel_set import KernelSet, ModelStep
from engine.kv_sizing import KVCacheSpec
from engine.model_config import ModelConfig
from engine.models.safetensors_loader import iterate_tensors
from engine.models.weights import DecoderWeights, load_decoder_weights

ModelClass = Callable[[ModelConfig, DecoderWeights, KernelSet, int, KVCacheSpec], ModelStep]

_MODELS = {"LlamaForCausalLM": "engine.models.llama:LlamaModel"}


def model_class(architecture: str) -> ModelClass:
    """The class for `architecture`; ModelError names those that exist."""
    if architecture not in _MODELS:
        raise ModelError(
            f"Model architecture {architecture} is not supported; this engine runs "
            f"{', '.join(_MODELS)}."
        )
    module_name, _, class_name = _MODELS[architecture].partition(":")
    return cast(ModelClass, getattr(importlib.import_module(module_name), class_name))


def load_weights(
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    on_shard: Callable[[int, int], None],
) -> DecoderWeights:
    """Read the checkpoint in `config.path`; `on_shard(done, total)` reports progress."""
    return load_decoder_weights(config, iterate_tensors(Path(config.path), on_shard), dtype, device)
