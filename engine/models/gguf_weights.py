"""Llama-architecture GGUF: metadata -> config.json, tensors -> bf16 safetensors shards."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import CorruptModelError, ModelError
from engine.models.gguf_file import GGUFFile
from engine.models.safetensors_files import INDEX_NAME

SHARD_BYTES = 2 * 10**9
_TOP_LEVEL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_PER_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FACTORS = "rope_freqs.weight"


def checkpoint_config(file: GGUFFile) -> dict[str, Any]:
    """config.json of a LlamaForCausalLM. Raises ModelError for what this engine does not run."""
    architecture = file.require("general.architecture")
    if architecture != "llama" or file.get("llama.expert_count", 0):
        kind = architecture if architecture != "llama" else "llama with experts"
        raise ModelError(f"{file.path}: GGUF architecture {kind} is not supported; only llama is.")
    heads = int(file.require("llama.attention.head_count"))
    hidden = int(file.require("llama.embedding_length"))
    head_dim = int(file.get("llama.attention.key_length") or hidden // heads)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": file.shape("token_embd.weight")[0],
        "hidden_size": hidden,
        "intermediate_size": int(file.require("llama.feed_forward_length")),
        "num_hidden_layers": int(file.require("llama.block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(file.get("llama.attention.head_count_kv") or heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": int(file.require("llama.context_length")),
        "rms_norm_eps": float(file.require("llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": float(file.get("llama.rope.freq_base", 10000.0)),
        "rope_scaling": _rope_scaling(file, head_dim),
        "tie_word_embeddings": not file.has_tensor("output.weight"),
        "attention_bias": file.has_tensor("blk.0.attn_q.bias"),
        "mlp_bias": file.has_tensor("blk.0.ffn_gate.bias"),
        "bos_token_id": file.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.get("tokenizer.ggml.eos_token_id"),
    }


def write_weights(
    file: GGUFFile,
    config: dict[str, Any],
    folder: Path,
    on_progress: Callable[[int, int, str], None],
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Dequantise tensor by tensor and write shards of about `shard_bytes`."""
    names = {
        name: checkpoint_name(name, file) for name in file.tensor_names if name != _ROPE_FACTORS
    }
    shards = _plan_shards(file, list(names), shard_bytes)
    files = _shard_names(len(shards))
    done = 0
    for shard, shard_name in zip(shards, files, strict=True):
        tensors: dict[str, NDArray[np.uint16]] = {}
        for name in shard:
            on_progress(done, len(names), name)
            tensors[names[name]] = to_bfloat16(_restored(file, name, config))
            done += 1
        _write_shard(folder / shard_name, tensors)
    if len(shards) > 1:
        _write_index(file, folder, shards, files, names)
    on_progress(done, len(names), "done")


def checkpoint_name(name: str, file: GGUFFile) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    stem, _, kind = name.rpartition(".")
    parts = stem.split(".")
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in _PER_LAYER:
        return f"model.layers.{parts[1]}.{_PER_LAYER[parts[2]]}.{kind}"
    if stem in _TOP_LEVEL:
        return f"{_TOP_LEVEL[stem]}.{kind}"
    raise ModelError(
        f"{file.path} holds the tensor {name}, which a plain Llama model does not have."
    )


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bit patterns, rounded to nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(
        16
    )
    result: NDArray[np.uint16] = rounded.astype(np.uint16)
    result[np.isnan(values)] = 0x7FC0
    return result


def undo_rotary_permutation(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """llama.cpp stores the two halves of each q and k head interleaved; put them back."""
    half = values.shape[0] // heads // 2
    pairs = values.reshape(heads, half, 2, *values.shape[1:])
    result: NDArray[np.float32] = pairs.swapaxes(1, 2).reshape(values.shape)
    return result


def _restored(file: GGUFFile, name: str, config: dict[str, Any]) -> NDArray[np.float32]:
    values = file.dequantise(name)
    if ".attn_q." in name:
        return undo_rotary_permutation(values, config["num_attention_heads"])
    if ".attn_k." in name:
        return undo_rotary_permutation(values, config["num_key_value_heads"])
    return values


def _rope_scaling(file: GGUFFile, head_dim: int) -> dict[str, Any] | None:
    kind = file.get("llama.rope.scaling.type", "none")
    if kind == "linear":
        return {"rope_type": "linear", "factor": float(file.require("llama.rope.scaling.factor"))}
    if kind != "none":
        raise ModelError(f"{file.path}: rope scaling {kind!r} is not supported.")
    if not file.has_tensor(_ROPE_FACTORS):
        return None
    return _llama3_scaling(file, head_dim)


def _llama3_scaling(file: GGUFFile, head_dim: int) -> dict[str, Any]:
    """GGUF keeps only the resulting divisors; find the Llama-3 parameters that give them."""
    divisors = file.dequantise(_ROPE_FACTORS).reshape(-1)
    theta = float(file.get("llama.rope.freq_base", 10000.0))
    frequencies = theta ** -(np.arange(0, head_dim, 2) / head_dim)
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


def _plan_shards(file: GGUFFile, names: list[str], shard_bytes: int) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    size = 0
    for name in names:
        num_bytes = 2 * math.prod(file.shape(name))
        if shards[-1] and size + num_bytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += num_bytes
    return shards


def _shard_names(count: int) -> list[str]:
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def _write_shard(path: Path, tensors: dict[str, NDArray[np.uint16]]) -> None:
    from safetensors import TensorSpec, serialize_file

    specs = {
        name: TensorSpec(
            dtype="bfloat16",
            shape=list(values.shape),
            data_ptr=values.ctypes.data,
            data_len=values.nbytes,
        )
        for name, values in tensors.items()
    }
    serialize_file(specs, path, {"format": "pt"})


def _write_index(
    file: GGUFFile, folder: Path, shards: list[list[str]], files: list[str], names: dict[str, str]
) -> None:
    total = sum(2 * math.prod(file.shape(name)) for name in names)
    weight_map = {
        names[name]: shard_name
        for shard, shard_name in zip(shards, files, strict=True)
        for name in shard
    }
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def require_all_tensors(file: GGUFFile, num_layers: int) -> None:
    """Raise CorruptModelError when a layer lacks a weight."""
    wanted = ["token_embd.weight", "output_norm.weight"]
    wanted += [f"blk.{n}.{part}.weight" for n in range(num_layers) for part in _PER_LAYER]
    missing = [name for name in wanted if not file.has_tensor(name)]
    if missing:
        raise CorruptModelError(f"{file.path} lacks {len(missing)} tensors, first {missing[0]}.")
