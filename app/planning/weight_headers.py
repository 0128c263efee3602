"""What weights take, by the headers of their safetensors files; the tensors stay unread.

Headers are read by `engine.model_files`, those on the hub by `app.planning.hub_files`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

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
from engine.model_files.checkpoint import checkpoint_headers
from engine.model_files.safetensors_header import Header, TensorEntry

_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
_LAYER_NUMBER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d{1,9})\.")
_TOWER_NAME = re.compile(r"vision|visual|audio|multi_modal|mm_projector")
_WHOLE_NAME = re.compile(
    r"norm|router|(?:mlp|moe)\.gate\.|(?:q_a|kv_a)_proj|shared_expert_gate|g_idx|e_score_correction"
)
_KV_NAME = re.compile(r"\.[kv]_proj\.")


def folder_weights(folder: Path, shape: ModelShape) -> Weights:
    """Weights of a folder's safetensors files; ModelError for pickles and damaged files."""
    headers = checkpoint_headers(folder)
    basis = f"headers of {len(headers)} safetensors file(s)"
    return weights_of_headers([*headers.values()], shape, basis)


def weights_of_headers(headers: Sequence[Header], shape: ModelShape, basis: str) -> Weights:
    """Sort the tensors of several files by where they go."""
    parts: list[WeightPart] = []
    for header in headers:
        parts += _parts_of(header, shape)
    return Weights(tuple(parts), basis, is_packed=shape.quantization is not None)


def _parts_of(header: Header, shape: ModelShape) -> Iterable[WeightPart]:
    for name, entry in header.items():
        part = _sorted_tensor(name, entry, shape)
        if part is not None:
            yield part


def _sorted_tensor(name: str, entry: TensorEntry, shape: ModelShape) -> WeightPart | None:
    """The part that a tensor is; None for what an engine does not load."""
    values, num_bytes, sizes = entry.num_values, entry.num_bytes, entry.shape
    dtype = _DTYPES.get(entry.dtype, entry.dtype.lower())
    found = _LAYER_NUMBER.search(name)
    if _TOWER_NAME.search(name):
        return WeightPart(TOWER, None, SPLIT, dtype, values, num_bytes)
    if found is None:
        if "lm_head" in name or name.startswith("output."):
            is_table = name.endswith(("lm_head.weight", "output.weight"))
            if shape.tie_word_embeddings and is_table:  # a second copy in the file, not in memory
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
