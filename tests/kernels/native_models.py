"""Builds native models for tests; skips, with the reason, where the set cannot run."""

from __future__ import annotations

import copy
import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import DeviceConfig
from engine.errors import ConfigError
from engine.kernels.kernel_set import ModelStep, create_kernel_set
from engine.kernels.native.model_step import NativeKernels, NativeModelStep
from engine.kernels.quantized_reference import quantized
from engine.kernels.selection import select_kernels
from engine.kv_sizing import KVCacheSpec, group_layers
from engine.model_config import ModelConfig
from engine.models.decoder_native import build_native_decoder
from engine.models.registry import load_weights, model_class
from engine.worker.kv_cache import cache_spec
from tests.models.tiny_models import save_tiny_model
from tests.worker.driver import engine_config


def native_library() -> ctypes.CDLL:
    device = DeviceConfig(kernels="native", quantization="int8")  # a build with all formats
    try:
        kernels = select_kernels(device, KVCacheSpec(16, 1, 64, 1, 2), ["native"], 1).kernels
    except ConfigError as error:
        if "failed with code" in str(error):  # it does not compile
            raise
        pytest.skip(str(error))
    assert isinstance(kernels, NativeKernels)
    return kernels.library


def native_model(
    folder: Path,
    *,
    block_size: int = 16,
    num_threads: int = 2,
    num_positions: int = 256,
    quantization: str = "none",
    cache_dtype: str = "auto",
) -> NativeModelStep:
    config = engine_config(folder, dtype="bfloat16", block_size=block_size, cache_dtype=cache_dtype)
    weights = load_weights(
        config.model, torch.bfloat16, torch.device("cpu"), lambda done, total: None
    )
    kernels = quantized(NativeKernels(native_library(), num_threads), quantization)
    assert isinstance(kernels, NativeKernels)
    return build_native_decoder(config.model, weights, kernels, num_positions, cache_spec(config))


def reference_model(
    folder: Path, *, block_size: int = 16, quantization: str = "none", cache_dtype: str = "auto"
) -> ModelStep:
    """The plain-torch twin in float32."""
    config = engine_config(folder, block_size=block_size, cache_dtype=cache_dtype)
    weights = load_weights(config.model, torch.float32, torch.device("cpu"), lambda *state: None)
    build = model_class()
    kernels = quantized(create_kernel_set("reference"), quantization)
    return build(config.model, weights, kernels, 256, cache_spec(config))


def group_windows(folder: Path) -> list[int | None]:
    """The sliding window of each KV group."""
    config = ModelConfig.from_folder(folder, "tiny")
    return [group.sliding_window for group in group_layers(config.layer_windows)]


def save_rounded(folder: Path, family: str = "Llama", **changes: Any) -> Any:
    """A tiny model and its float32 oracle, both with weights that bf16 holds exactly."""
    model = save_tiny_model(folder, family, **{"head_dim": 32, **changes})
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    for parameter in model.parameters():  # not the frequencies of the positions
        parameter.data = parameter.data.to(torch.bfloat16).float()
    return model
