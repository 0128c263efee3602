"""GGUF metadata -> the config.json and generation_config.json of a checkpoint folder.

Owns what each architecture's metadata means; tensors are `gguf_weights`'s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from engine.errors import ModelError
from engine.models.gguf_file import GGUFFile

ROPE_FACTORS = "rope_freqs.weight"
"""A tensor that only config.json needs."""

_SIZES = (
    *("attention.head_count", "attention.head_count_kv", "attention.key_length"),
    *("embedding_length", "feed_forward_length", "block_count", "context_length"),
)
_CONTROL = 3
_END_KEYS = ("eos", "eot", "eom")
# Many files name one end token only; without these a chat model would talk on after its turn.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>")

Config = dict[str, Any]


def checkpoint_config(file: GGUFFile) -> Config:
    """config.json. Raises ModelError for what this engine does not run."""
    architecture = file.architecture
    if architecture not in _FAMILIES or _count(file, "expert_count", 0):
        kind = architecture if architecture not in _FAMILIES else f"{architecture} with experts"
        raise ModelError(
            f"{file.path}: GGUF architecture {kind} is not supported; {', '.join(_FAMILIES)} are."
        )
    config = _common(file)
    turned = _count(file, "rope.dimension_count", config["head_dim"])
    if turned != config["head_dim"]:
        raise ModelError(
            f"{file.path}: rotating {turned} of a head's {config['head_dim']} dimensions is not "
            "supported; all of them are."
        )
    return {**config, **_FAMILIES[architecture](file, config)}


def generation_config(file: GGUFFile) -> Config:
    """generation_config.json: every token that ends a text or a turn."""
    ids = [file.get(f"tokenizer.ggml.{key}_token_id") for key in _END_KEYS]
    ids += _turn_ends(file)
    eos = list(dict.fromkeys(int(token) for token in ids if token is not None))
    return {"bos_token_id": file.get("tokenizer.ggml.bos_token_id"), "eos_token_id": eos}


def _turn_ends(file: GGUFFile) -> list[int]:
    tokens: list[str] = file.require("tokenizer.ggml.tokens")
    kinds = file.get("tokenizer.ggml.token_type", [])
    return [
        number
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
        if kind == _CONTROL and token in _TURN_ENDS
    ]


def _common(file: GGUFFile) -> Config:
    for key in _SIZES:
        _require_one_for_all(file, key)
    sizes = file.header.decoder_sizes()
    return {
        "dtype": "bfloat16",
        "vocab_size": file.shape("token_embd.weight")[0],
        **sizes,
        "rms_norm_eps": float(file.require_setting("attention.layer_norm_rms_epsilon")),
        "rope_theta": _rope_theta(file),
        "rope_scaling": _rope_scaling(file, sizes["head_dim"]),
        "tie_word_embeddings": not file.has_tensor("output.weight"),
        "bos_token_id": file.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.get("tokenizer.ggml.eos_token_id"),
    }


def _count(file: GGUFFile, key: str, default: int | None = None) -> int:
    _require_one_for_all(file, key)
    return file.header.count(key, default)


def _require_one_for_all(file: GGUFFile, key: str) -> None:
    if isinstance(file.setting(key), list):
        raise ModelError(f"{file.path}: a {key} for each layer is not supported; one for all is.")


def _llama(file: GGUFFile, config: Config) -> Config:
    window = _count(file, "attention.sliding_window", 0)
    if window:
        return {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "hidden_act": "silu",
            "sliding_window": window,
        }
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": file.has_tensor("blk.0.attn_q.bias"),
        "mlp_bias": file.has_tensor("blk.0.ffn_gate.bias"),
    }


def _qwen2(file: GGUFFile, config: Config) -> Config:
    return {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu"}


def _qwen3(file: GGUFFile, config: Config) -> Config:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "attention_bias": file.has_tensor("blk.0.attn_q.bias"),
    }


def _gemma3(file: GGUFFile, config: Config) -> Config:
    layers = config["num_hidden_layers"]
    every = _count(file, "attention.sliding_window_pattern", 6)
    kinds = ["sliding_attention", "full_attention"]
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_local_base_freq": float(file.setting("rope.freq_base_swa", 10_000.0)),
        "sliding_window": _count(file, "attention.sliding_window"),
        "layer_types": [kinds[(number + 1) % every == 0] for number in range(layers)],
        "query_pre_attn_scalar": _query_scalar(config),
        "final_logit_softcapping": file.setting("final_logit_softcapping"),
    }


def _query_scalar(config: Config) -> int:
    """Metadata does not say it: the head's size, but in the 27B model hidden size per head."""
    if config["num_hidden_layers"] == 62:
        return int(config["hidden_size"]) // int(config["num_attention_heads"])
    return int(config["head_dim"])


_FAMILIES: Mapping[str, Callable[[GGUFFile, Config], Config]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma3": _gemma3,
}


def _rope_theta(file: GGUFFile) -> float:
    default = 1_000_000.0 if file.architecture == "gemma3" else 10_000.0
    return float(file.setting("rope.freq_base", default))


def _rope_scaling(file: GGUFFile, head_dim: int) -> Config | None:
    kind = file.setting("rope.scaling.type", "none")
    if kind == "linear":
        return {"rope_type": "linear", "factor": float(file.require_setting("rope.scaling.factor"))}
    if kind != "none":
        raise ModelError(f"{file.path}: rope scaling {kind!r} is not supported.")
    if not file.has_tensor(ROPE_FACTORS):
        return None
    return _llama3_scaling(file, head_dim)


def _llama3_scaling(file: GGUFFile, head_dim: int) -> Config:
    """GGUF keeps only the resulting divisors; find the Llama-3 parameters that give them."""
    divisors = file.dequantise(ROPE_FACTORS).reshape(-1)
    frequencies = _rope_theta(file) ** -(np.arange(0, head_dim, 2) / head_dim)
    factor = float(divisors.max())
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    turns = 8192 * frequencies / (2 * math.pi)
    keep = np.clip((turns - 1.0) / 3.0, 0.0, 1.0)
    expected = 1.0 / (keep + (1.0 - keep) / factor)
    if divisors.shape != expected.shape or not np.allclose(divisors, expected, rtol=1e-3):
        raise ModelError(
            f"{file.path}: its rope_freqs are not those of Llama 3, so they are not known."
        )
    return scaling
