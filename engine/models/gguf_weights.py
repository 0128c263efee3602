"""GGUF tensors -> bf16 safetensors shards under a checkpoint's names.

Owns how llama.cpp's layout of each architecture differs from the original's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import CorruptModelError, ModelError
from engine.model_files.checkpoint import INDEX_NAME
from engine.models.gguf_config import ROPE_FACTORS
from engine.models.gguf_file import GGUFFile

SHARD_BYTES = 2 * 10**9
_CHUNK_VALUES = 1 << 22  # dequantised at once: an embedding whole takes gigabytes in float32

_QKV = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
}
_FEED_FORWARD = {
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LINEAR = {**_QKV, "attn_output": "self_attn.o_proj", **_FEED_FORWARD}
_TWO_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_FOUR_NORMS = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


@dataclass(frozen=True, slots=True)
class _Layout:
    """`norms` of a layer; which weights have `biases` whatever config.json says."""

    norms: Mapping[str, str]
    biases: Mapping[str, str] = field(default_factory=dict)
    is_rotary_interleaved: bool = False
    norm_offset: float = 0.0  # added to norm weights


_LAYOUTS = {
    "llama": _Layout(_TWO_NORMS, is_rotary_interleaved=True),
    "qwen2": _Layout(_TWO_NORMS, biases=_QKV),
    "qwen3": _Layout({**_TWO_NORMS, **_HEAD_NORMS}),
    "gemma3": _Layout({**_FOUR_NORMS, **_HEAD_NORMS}, norm_offset=1.0),
}


def write_weights(
    file: GGUFFile,
    config: dict[str, Any],
    folder: Path,
    on_progress: Callable[[int, int, str], None],
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Dequantise tensor by tensor and write shards of about `shard_bytes`.

    Raises CorruptModelError when a tensor is absent and ModelError when one is not known.
    """
    names = checkpoint_names(file, config)
    shards = _plan_shards(file, list(names), shard_bytes)
    files = _shard_names(len(shards))
    done = 0
    for shard, shard_name in zip(shards, files, strict=True):
        tensors: dict[str, NDArray[np.uint16]] = {}
        for name in shard:
            on_progress(done, len(names), name)
            tensors[names[name]] = _restored(file, name, config)
            done += 1
        _write_shard(folder / shard_name, tensors)
    if len(shards) > 1:
        _write_index(file, folder, shards, files, names)
    on_progress(done, len(names), "done")


def checkpoint_names(file: GGUFFile, config: dict[str, Any]) -> dict[str, str]:
    """Tensor in the file -> in the checkpoint (`blk.3.attn_q.weight` -> `model.layers.3...`)."""
    names = _expected_names(file, config)
    missing = [name for name in names if not file.has_tensor(name)]
    if missing:
        raise CorruptModelError(f"{file.path} lacks {len(missing)} tensors, first {missing[0]}.")
    for name in file.tensor_names:
        if name not in names and name != ROPE_FACTORS:
            raise ModelError(
                f"{file.path} holds the tensor {name}, which a plain {file.architecture} model "
                "does not have."
            )
    return names


def _expected_names(file: GGUFFile, config: dict[str, Any]) -> dict[str, str]:
    layout = _LAYOUTS[file.architecture]
    biases = dict(layout.biases)
    if config.get("attention_bias"):
        biases |= {part: name for part, name in _LINEAR.items() if part not in _FEED_FORWARD}
    if config.get("mlp_bias"):
        biases |= _FEED_FORWARD
    names = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
    }
    if not config["tie_word_embeddings"]:
        names["output.weight"] = "lm_head.weight"
    for number in range(config["num_hidden_layers"]):
        ours, theirs = f"blk.{number}", f"model.layers.{number}"
        for part, name in {**layout.norms, **_LINEAR}.items():
            names[f"{ours}.{part}.weight"] = f"{theirs}.{name}.weight"
        for part, name in biases.items():
            names[f"{ours}.{part}.bias"] = f"{theirs}.{name}.bias"
    return names


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bit patterns, rounded to nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(
        16
    )
    result: NDArray[np.uint16] = rounded.astype(np.uint16)
    result[np.isnan(values)] = 0x7FC0
    return result


def undo_rotary_permutation(values: NDArray[np.uint16], heads: int) -> NDArray[np.uint16]:
    """llama.cpp stores the two halves of each q and k head interleaved; put them back."""
    half = values.shape[0] // heads // 2
    pairs = values.reshape(heads, half, 2, *values.shape[1:])
    result: NDArray[np.uint16] = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
    return result


def _restored(file: GGUFFile, name: str, config: dict[str, Any]) -> NDArray[np.uint16]:
    layout = _LAYOUTS[file.architecture]
    is_norm = name.endswith("norm.weight")
    values = _in_bfloat16(file, name, layout.norm_offset if is_norm else 0.0)
    if layout.is_rotary_interleaved and ".attn_q." in name:
        return undo_rotary_permutation(values, config["num_attention_heads"])
    if layout.is_rotary_interleaved and ".attn_k." in name:
        return undo_rotary_permutation(values, config["num_key_value_heads"])
    return values


def _in_bfloat16(file: GGUFFile, name: str, offset: float) -> NDArray[np.uint16]:
    """The tensor less `offset`, a few rows at a time."""
    shape = file.shape(name)
    result = np.empty(shape, np.uint16)
    step = max(1, _CHUNK_VALUES // max(1, math.prod(shape[1:])))
    for start in range(0, shape[0], step):
        rows = slice(start, start + step)
        result[rows] = to_bfloat16(file.dequantise(name, rows) - np.float32(offset))
    return result


def _plan_shards(file: GGUFFile, names: list[str], shard_bytes: int) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    size = 0
    for name in names:
        num_bytes = _converted_bytes(file, name)
        if shards[-1] and size + num_bytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += num_bytes
    return shards


def converted_bytes(file: GGUFFile, names: Iterable[str]) -> int:
    """What the weights take as a checkpoint."""
    return sum(_converted_bytes(file, name) for name in names)


def _converted_bytes(file: GGUFFile, name: str) -> int:
    return 2 * math.prod(file.shape(name))


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
