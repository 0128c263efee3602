"""Builds native models for tests; skips, with the reason, where the set cannot run."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import DeviceConfig
from engine.errors import ConfigError
from engine.kernels.native.model_step import NativeKernels, NativeModelStep
from engine.kernels.selection import select_kernels
from engine.kv_sizing import KVCacheSpec
from engine.models.llama_native import build_native_llama
from engine.models.registry import load_weights
from engine.worker.kv_cache import cache_spec
from tests.models.tiny_models import save_tiny_llama
from tests.worker.driver import engine_config


def native_library() -> ctypes.CDLL:
    device = DeviceConfig(attention_backend="native")
    try:
        kernels = select_kernels(device, KVCacheSpec(16, 1, 64, 1, 2), ["native"], 1).kernels
    except ConfigError as error:
        pytest.skip(str(error))
    assert isinstance(kernels, NativeKernels)
    return kernels.library


def native_model(
    folder: Path, *, block_size: int = 16, num_threads: int = 2, num_positions: int = 256
) -> NativeModelStep:
    config = engine_config(folder, dtype="bfloat16", block_size=block_size)
    weights = load_weights(
        config.model, torch.bfloat16, torch.device("cpu"), lambda done, total: None
    )
    kernels = NativeKernels(native_library(), num_threads)
    return build_native_llama(config.model, weights, kernels, num_positions, cache_spec(config))


def save_rounded_llama(folder: Path, **changes: Any) -> Any:
    """A tiny Llama and its float32 oracle, both with weights that bf16 holds exactly."""
    changes = {"head_dim": 32, **changes}
    model = save_tiny_llama(folder, **changes).to(torch.bfloat16)
    model.save_pretrained(folder)
    return model.float()
