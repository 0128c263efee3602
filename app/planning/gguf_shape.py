"""Shape and weight bytes of a GGUF file, from the header that `engine.model_files` reads."""

from __future__ import annotations

import re
from pathlib import Path

from app.errors import UsageError
from app.planning.model_shapes import Experts, ModelShape
from app.planning.weight_sizes import EMBEDDING, HEAD, LAYER, SPLIT, WeightPart, Weights
from engine.model_families import gemma3_windows
from engine.model_files.bounds import shown
from engine.model_files.gguf_header import TYPES, GGUFHeader, GGUFTensor, read_gguf_header

_PLAIN = frozenset({"llama", "qwen2", "qwen3", "qwen2moe", "qwen3moe", "phi3", "mistral"})
_GEMMA3 = "gemma3"
_LAYER_NAME = re.compile(r"blk\.(\d{1,5})\.")


def read_gguf(path: Path) -> tuple[ModelShape, Weights]:
    """Shape and weights. CorruptModelError for damage, StokerError for what cannot be counted."""
    header = read_gguf_header(path)
    num_files = header.metadata.get("split.count", 1)
    if num_files not in (0, 1):
        raise UsageError(
            f"{path} is one part of {shown(num_files)}",
            hint="join them with llama-gguf-split --merge, then give the whole file",
        )
    parts = tuple(_part(tensor, path) for tensor in header.tensors)
    return _shape(header), Weights(parts, f"header of {path.name}")


def _part(tensor: GGUFTensor, path: Path) -> WeightPart:
    if tensor.num_bytes is None:
        raise UsageError(
            f"{path}: tensor {shown(tensor.name)} has a type ({tensor.kind}) that is not known"
        )
    dtype, values, size = TYPES[tensor.kind][0], tensor.num_values, tensor.num_bytes
    if (layer := _LAYER_NAME.match(tensor.name)) is not None:
        return WeightPart(LAYER, int(layer[1]), SPLIT, dtype, values, size)
    place = EMBEDDING if "embd" in tensor.name else HEAD
    return WeightPart(place, None, SPLIT, dtype, values, size)


def _shape(header: GGUFHeader) -> ModelShape:
    path, family = header.path, header.architecture
    if family not in _PLAIN and family != _GEMMA3:
        raise UsageError(
            f"{path} is a {shown(family)}, whose cache `stoker plan` cannot count; it knows "
            f"{', '.join(sorted(_PLAIN))} and {_GEMMA3}"
        )
    sizes, experts = header.decoder_sizes(), header.count("expert_count", 0)
    layers, inner = sizes["num_hidden_layers"], sizes["intermediate_size"]
    window = header.count("attention.sliding_window", 0) or None
    return ModelShape(
        name=path.name,
        architecture=family,
        hidden_size=sizes["hidden_size"],
        intermediate_size=inner,
        num_layers=layers,
        num_heads=sizes["num_attention_heads"],
        num_kv_heads=sizes["num_key_value_heads"],
        head_dim=sizes["head_dim"],
        vocab_size=_vocab_size(header),
        max_model_len=sizes["max_position_embeddings"],
        dtype="float16",  # of llama.cpp's cache
        tie_word_embeddings=all(tensor.name != "output.weight" for tensor in header.tensors),
        layer_windows=gemma3_windows({"num_hidden_layers": layers, "sliding_window": window})
        if family == _GEMMA3
        else (None,) * layers,
        experts=Experts(
            number=experts,
            per_token=header.count("expert_used_count"),
            size=header.count("expert_feed_forward_length", inner),
        )
        if experts
        else None,
        quantization="gguf",
    )


def _vocab_size(header: GGUFHeader) -> int:
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    return len(tokens) if isinstance(tokens, list) and tokens else header.count("vocab_size")
