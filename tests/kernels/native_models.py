"""Builds native models for tests; skips, with the reason, where the set cannot run."""

from __future__ import annotations

import copy
import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

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
from tests.models.tiny_models import LINEAR_ROPE, LLAMA3_ROPE, YARN_ROPE, save_tiny_model
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


VOCAB = 199


VARIANTS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "llama3 rope": {"rope_parameters": LLAMA3_ROPE},
    "yarn rope": {"rope_parameters": YARN_ROPE},
    "linear rope": {"rope_parameters": LINEAR_ROPE},
    "heads of 64": {"head_dim": 64},
    "heads of 96": {"head_dim": 96},
    "heads of 128": {"head_dim": 128},
    "one kv head": {"num_key_value_heads": 1, "num_attention_heads": 8},
    "many query heads": {"hidden_size": 81, "num_key_value_heads": 1, "num_attention_heads": 27},
    "no groups": {"hidden_size": 54, "num_attention_heads": 3, "num_key_value_heads": 3},
    "odd sizes": {
        "hidden_size": 77,
        "intermediate_size": 101,
        "vocab_size": 203,
        "num_attention_heads": 7,
        "num_key_value_heads": 1,
    },
    "panels that fit": {"hidden_size": 96, "intermediate_size": 144, "vocab_size": 240},
}


def random_prompts(*lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, VOCAB, length).tolist() for length in lengths]


def relative_error(result: Tensor, wanted: Tensor) -> float:
    return float((result - wanted).norm() / wanted.norm())


def assert_same(results: list[Tensor], wanted: list[Tensor]) -> None:
    for result, other in zip(results, wanted, strict=True):
        assert torch.equal(result, other), (result - other).abs().max()


GEMMA3: dict[str, Any] = {
    "family": "Gemma3",
    "num_hidden_layers": 7,
    "sliding_window": 9,
    "layer_types": [*["sliding_attention"] * 2, "full_attention"] * 2 + ["sliding_attention"],
    "tie_word_embeddings": True,
}
GEMMA2: dict[str, Any] = {
    "family": "Gemma2",
    "num_hidden_layers": 4,
    "sliding_window": 9,
    "query_pre_attn_scalar": 20,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 3.0,
    "tie_word_embeddings": True,
}
MIXTRAL: dict[str, Any] = {
    "family": "Mixtral",
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}
QWEN3_MOE: dict[str, Any] = {
    "family": "Qwen3Moe",
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
}
GPT_OSS: dict[str, Any] = {
    "family": "GptOss",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 11,
}
