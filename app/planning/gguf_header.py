"""Shape and weight bytes of a GGUF file, from its header alone. Standard library only."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from app.errors import ExitCode, StokerError
from app.planning.model_shapes import Experts, ModelShape
from app.planning.weight_sizes import EMBEDDING, HEAD, LAYER, SPLIT, WeightPart, Weights

_MAGIC = b"GGUF"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
_SCALARS[12] = "d"
_STRING, _ARRAY = 8, 9
_MOST = 1 << 24  # longest string or list that an honest header holds

# ggml type -> (name, values in a block, bytes of a block)
_TYPES: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    30: ("BF16", 1, 2),
    28: ("F64", 1, 8),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    29: ("IQ1_M", 256, 56),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}
_PLAIN = frozenset({"llama", "qwen2", "qwen3", "qwen2moe", "qwen3moe", "phi3", "mistral"})
_GEMMA3 = "gemma3"
_GEMMA3_EVERY = 6


def read_gguf(path: Path) -> tuple[ModelShape, Weights]:
    """Shape and weights; StokerError for damage, split files and families that are not known."""
    with path.open("rb") as file:
        try:
            metadata, tensors = _read(file, path)
        except (struct.error, UnicodeDecodeError, OverflowError, MemoryError) as error:
            raise _damaged(path) from error
    if int(metadata.get("split.count", 1)) > 1:
        raise StokerError(
            f"{path} is one part of {metadata['split.count']}",
            hint="join them with llama-gguf-split --merge, then give the whole file",
            exit_code=ExitCode.USAGE,
        )
    has_head = any(name == "output.weight" for name, _, _ in tensors)
    return _shape(metadata, path, has_head), Weights(
        tuple(_part(name, kind, sizes, path) for name, kind, sizes in tensors),
        f"header of {path.name}",
    )


def _read(
    file: IO[bytes], path: Path
) -> tuple[dict[str, Any], list[tuple[str, int, tuple[int, ...]]]]:
    if file.read(4) != _MAGIC:
        raise _damaged(path)
    version, num_tensors, num_fields = _unpack(file, "IQQ")
    if not 2 <= version <= 3 or max(num_tensors, num_fields) > _MOST:
        raise _damaged(path)
    metadata: dict[str, Any] = {}
    for _ in range(num_fields):
        key = _string(file, path)
        (kind,) = _unpack(file, "I")
        metadata[key] = _value(file, kind, path)
    return metadata, list(_tensors(file, num_tensors, path))


def _tensors(
    file: IO[bytes], number: int, path: Path
) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    for _ in range(number):
        name = _string(file, path)
        (dimensions,) = _unpack(file, "I")
        if dimensions > 8:
            raise _damaged(path)
        sizes = _unpack(file, "Q" * dimensions)
        kind, _offset = _unpack(file, "IQ")
        yield name, kind, sizes


def _value(file: IO[bytes], kind: int, path: Path) -> Any:
    if kind == _STRING:
        return _string(file, path)
    if kind == _ARRAY:
        inner, length = _unpack(file, "IQ")
        if length > _MOST:
            raise _damaged(path)
        if inner in _SCALARS:
            return _unpack(file, _SCALARS[inner] * length)
        return [_value(file, inner, path) for _ in range(length)]
    if kind not in _SCALARS:
        raise _damaged(path)
    return _unpack(file, _SCALARS[kind])[0]


def _string(file: IO[bytes], path: Path) -> str:
    (length,) = _unpack(file, "Q")
    if length > _MOST:
        raise _damaged(path)
    return file.read(length).decode("utf-8", errors="replace")


def _unpack(file: IO[bytes], form: str) -> tuple[Any, ...]:
    form = "<" + form
    return struct.unpack(form, file.read(struct.calcsize(form)))


def _part(name: str, kind: int, sizes: tuple[int, ...], path: Path) -> WeightPart:
    if kind not in _TYPES:
        raise StokerError(f"{path}: tensor {name} has a type ({kind}) that is not known")
    dtype, values_per_block, block_bytes = _TYPES[kind]
    values = math.prod(sizes)
    size = values // values_per_block * block_bytes
    if name.startswith("blk."):
        return WeightPart(LAYER, int(name.split(".")[1]), SPLIT, dtype, values, size)
    return WeightPart(EMBEDDING if "embd" in name else HEAD, None, SPLIT, dtype, values, size)


def _shape(metadata: Mapping[str, Any], path: Path, has_head: bool) -> ModelShape:
    family = str(metadata.get("general.architecture", "(none named)"))
    if family not in _PLAIN and family != _GEMMA3:
        raise StokerError(
            f"{path} is a {family}, whose cache `stoker plan` cannot count; it knows "
            f"{', '.join(sorted(_PLAIN))} and {_GEMMA3}",
            exit_code=ExitCode.USAGE,
        )

    def setting(key: str, default: Any = None) -> Any:
        value = metadata.get(f"{family}.{key}", default)
        if value is None:
            raise StokerError(f"{path} lacks the metadata field {family}.{key}")
        return value

    heads, hidden = int(setting("attention.head_count")), int(setting("embedding_length"))
    layers, window = int(setting("block_count")), int(setting("attention.sliding_window", 0))
    experts = int(setting("expert_count", 0))
    return ModelShape(
        name=path.name,
        architecture=family,
        hidden_size=hidden,
        intermediate_size=int(setting("feed_forward_length")),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=int(setting("attention.head_count_kv", heads)),
        head_dim=int(setting("attention.key_length", hidden // heads)),
        vocab_size=len(metadata.get("tokenizer.ggml.tokens", ())) or int(setting("vocab_size")),
        max_model_len=int(setting("context_length")),
        dtype="float16",  # of llama.cpp's cache
        tie_word_embeddings=not has_head,
        layer_windows=tuple(
            window if family == _GEMMA3 and window and (n + 1) % _GEMMA3_EVERY else None
            for n in range(layers)
        ),
        experts=Experts(
            number=experts,
            per_token=int(setting("expert_used_count")),
            size=int(setting("expert_feed_forward_length", setting("feed_forward_length"))),
        )
        if experts
        else None,
        quantization="gguf",
    )


def _damaged(path: Path) -> StokerError:
    return StokerError(f"{path} is no GGUF file, or is damaged or cut off")
