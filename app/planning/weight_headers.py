"""Reads what weights take from the headers of safetensors files; the tensors stay unread.

Files on the hub are `app.planning.hub_files`'s, GGUF files `app.planning.gguf_header`'s.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from app.errors import StokerError
from app.planning.model_shapes import ModelShape
from app.planning.weight_sizes import (
    EMBEDDING,
    HEAD,
    KV_HEADS,
    LAYER,
    SPLIT,
    TOWER,
    VALUE_BYTES,
    WHOLE,
    WeightPart,
    Weights,
)

_HEADER_LIMIT_BYTES = 100 << 20
_LAYER_NUMBER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_TOWER_NAME = re.compile(r"vision|visual|audio|multi_modal|mm_projector")
_WHOLE_NAME = re.compile(
    r"norm|router|(?:mlp|moe)\.gate\.|(?:q_a|kv_a)_proj|shared_expert_gate|g_idx|e_score_correction"
)
_KV_NAME = re.compile(r"\.[kv]_proj\.")


def folder_weights(folder: Path, shape: ModelShape) -> Weights:
    """Weights of a folder's safetensors files; pickles and missing files are refused."""
    files = _safetensors_files(folder)
    headers = [read_header(path) for path in files]
    return weights_of_headers(headers, shape, f"headers of {len(files)} safetensors file(s)")


def weights_of_headers(
    headers: Sequence[Mapping[str, Any]], shape: ModelShape, basis: str
) -> Weights:
    """Sort the tensors of several files by where they go."""
    parts: list[WeightPart] = []
    for header in headers:
        parts += _parts_of(header, shape)
    return Weights(tuple(parts), basis, is_packed=shape.quantization is not None)


def read_header(path: Path) -> dict[str, Any]:
    """8 bytes (little endian) say how long the JSON after them is."""
    with path.open("rb") as file:
        length = header_length(file.read(8), str(path))
        return parse_header(file.read(length), str(path))


def parse_header(text: bytes, source: str) -> dict[str, Any]:
    """The JSON of a header, metadata removed."""
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        return dict(header)
    except (ValueError, AttributeError) as error:
        raise _damaged(source) from error


def header_length(first_bytes: bytes, source: str) -> int:
    """Length of the JSON that follows the first 8 bytes."""
    length = int.from_bytes(first_bytes[:8], "little")
    if not 0 < length <= _HEADER_LIMIT_BYTES:
        raise _damaged(source)
    return length


def _parts_of(header: Mapping[str, Any], shape: ModelShape) -> Iterable[WeightPart]:
    for name, entry in header.items():
        try:
            kind, sizes = str(entry["dtype"]), tuple(int(n) for n in entry["shape"])
            begin, end = entry["data_offsets"]
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(name) from error
        part = _sorted_tensor(name, kind, sizes, int(end) - int(begin), shape)
        if part is not None:
            yield part


def _sorted_tensor(
    name: str, kind: str, sizes: tuple[int, ...], num_bytes: int, shape: ModelShape
) -> WeightPart | None:
    """The part that a tensor is; None for what an engine does not load."""
    values = math.prod(sizes)
    dtype = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}.get(kind, kind.lower())
    found = _LAYER_NUMBER.search(name)
    if _TOWER_NAME.search(name):
        return WeightPart(TOWER, None, SPLIT, dtype, values, num_bytes)
    if found is None:
        if "lm_head" in name or name.startswith("output."):
            if shape.tie_word_embeddings:  # a second copy in the file, not in memory
                return None
            return WeightPart(HEAD, None, SPLIT, dtype, values, num_bytes)
        place = HEAD if "norm" in name else EMBEDDING
        division = WHOLE if place == HEAD else SPLIT
        return WeightPart(place, None, division, dtype, values, num_bytes)
    layer = int(found.group(1))
    if layer >= shape.num_layers:  # the multi-token head, loaded only for speculation
        return None
    division = WHOLE if _WHOLE_NAME.search(name) else SPLIT
    if division == SPLIT and _KV_NAME.search(name):
        division = KV_HEADS
    is_linear = len(sizes) >= 2 and division != WHOLE
    is_expert = ".experts." in name
    return WeightPart(
        *(LAYER, layer, division, dtype, values, num_bytes),
        is_linear=is_linear and dtype in VALUE_BYTES,
        is_expert=is_expert,
    )


def _safetensors_files(folder: Path) -> list[Path]:
    """The files that the index names; without one, all but Mistral's second copy."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = index_files(index.read_bytes(), str(index))
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise StokerError(f"{folder} lacks {len(missing)} file(s), the first is {missing[0]}")
        return [folder / name for name in names]
    files = [p for p in sorted(folder.glob("*.safetensors")) if "consolidated" not in p.name]
    if not files:
        others = sorted(p.name for p in folder.glob("*.bin")) + sorted(
            p.name for p in folder.glob("*.gguf")
        )
        hint = f"it holds {others[0]}" if others else None
        raise StokerError(f"{folder} holds no safetensors files", hint=hint)
    return files


def index_files(text: bytes, source: str) -> list[str]:
    """File names in a model.safetensors.index.json."""
    try:
        return sorted(set(json.loads(text)["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(source) from error


def _damaged(source: str) -> StokerError:
    return StokerError(f"{source} is no safetensors header, or is damaged")
