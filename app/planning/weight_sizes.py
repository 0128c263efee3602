"""How many bytes the weights take, whole and on one GPU: the parts and how ranks divide them.

`app.planning.weight_counts` finds the parts from a shape, `app.planning.weight_headers` from files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from app.planning.model_shapes import Experts, ModelShape

VALUE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
FP8_BYTES = 1.0
# Of one value with its group's bf16 scale (and minimum), as docs/kernels.md describes them.
NATIVE_BYTES = {"int8": 1 + 2 / 64, "int4": 0.5 + 4 / 32}

WHOLE, SPLIT, KV_HEADS = "whole", "split", "kv-heads"
EMBEDDING, LAYER, HEAD, TOWER = "embedding", "layer", "head", "tower"


@dataclass(frozen=True, slots=True)
class WeightPart:
    """Tensors that are kept and divided alike.

    `division` says what tensor parallelism does: SPLIT over all ranks, KV_HEADS until one KV head
    is left, or WHOLE in each. `is_linear` marks what online fp8 quantisation shrinks.
    """

    place: str
    layer: int | None
    division: str
    dtype: str
    num_values: int
    num_bytes: float
    is_linear: bool = False
    is_expert: bool = False
    is_copy: bool = False  # of values that another part counts


@dataclass(frozen=True, slots=True)
class Weights:
    """All parts. `num_values` of packed checkpoints counts storage, so `parameters` is None."""

    parts: tuple[WeightPart, ...]
    basis: str
    is_packed: bool = False

    @property
    def num_bytes(self) -> int:
        """Bytes of one whole copy, on however many GPUs it lies."""
        return math.ceil(sum(part.num_bytes for part in self.parts))

    @property
    def parameters(self) -> int | None:
        """Parameters with all experts; None where packed values cannot be counted."""
        if self.is_packed:
            return None
        return sum(part.num_values for part in self.parts if not part.is_copy)

    def active_parameters(self, experts: Experts | None) -> int | None:
        """Parameters that one token passes through."""
        if experts is None or self.is_packed:
            return self.parameters
        idle = sum(part.num_values for part in self.parts if part.is_expert)
        return (self.parameters or 0) - idle + idle * experts.per_token // experts.number

    def bytes_by_dtype(self) -> dict[str, int]:
        """Bytes per number format, the format with most of them first."""
        sizes: dict[str, float] = {}
        for part in self.parts:
            sizes[part.dtype] = sizes.get(part.dtype, 0.0) + part.num_bytes
        return {name: round(sizes[name]) for name in sorted(sizes, key=lambda n: -sizes[n])}

    def loaded_as(self, dtype: str) -> Weights:
        """With all plain numbers in the format that the model runs in."""
        size = VALUE_BYTES.get(dtype)
        if size is None:
            return self
        parts = tuple(
            replace(part, dtype=dtype, num_bytes=part.num_values * size)
            if part.dtype in VALUE_BYTES
            else part
            for part in self.parts
        )
        return replace(self, parts=parts)

    def as_fp8(self) -> Weights:
        """With linear layers quantised to fp8 while loading; what is 8 bits or less stays."""
        parts = tuple(
            replace(part, dtype="fp8", num_bytes=part.num_values * FP8_BYTES)
            if part.is_linear and part.num_bytes > part.num_values
            else part
            for part in self.parts
        )
        return replace(self, parts=parts, basis=f"{self.basis}, linear layers in fp8")

    def as_native(self, shape: ModelShape, quantization: str | None) -> Weights:
        """As the native CPU kernels keep them: the head is packed apart from a tied embedding."""
        parts = [*self.parts]
        if shape.tie_word_embeddings:
            tables = [part for part in parts if part.place == EMBEDDING]
            parts += [replace(part, place=HEAD, is_copy=True) for part in tables]
        if quantization is None:
            return replace(self, parts=tuple(parts))
        sizes = {LAYER: NATIVE_BYTES[quantization], HEAD: NATIVE_BYTES["int8"]}
        packed = tuple(
            replace(part, dtype=quantization, num_bytes=part.num_values * sizes[part.place])
            if part.is_linear or (part.place == HEAD and part.division == SPLIT)
            else part
            for part in parts
        )
        basis = f"{self.basis}, linear layers in {quantization}"
        return replace(self, parts=packed, basis=basis)


def device_bytes(
    weights: Weights, shape: ModelShape, tensor_parallel_size: int, stage: range
) -> int:
    """Weights on one rank of the pipeline stage that holds the layers `stage`."""
    is_first, is_last = stage.start == 0, stage.stop == shape.num_layers
    has_place = {
        EMBEDDING: is_first or (is_last and shape.tie_word_embeddings),
        TOWER: is_first,
        HEAD: is_last,
    }
    total = 0.0
    for part in weights.parts:
        if part.layer in stage if part.place == LAYER else has_place[part.place]:
            total += part.num_bytes / _ranks(part, shape, tensor_parallel_size)
    return math.ceil(total)


def _ranks(part: WeightPart, shape: ModelShape, size: int) -> int:
    if part.division == WHOLE:
        return 1
    return min(size, shape.num_kv_heads) if part.division == KV_HEADS else size
