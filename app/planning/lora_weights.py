"""What `--enable-lora` reserves for adapters: two low matrices beside each linear layer.

vLLM's lora/layers: the side that a layer divides over ranks is divided for the adapter as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from app.planning.model_shapes import ModelShape
from app.planning.weight_sizes import LAYER, SPLIT, VALUE_BYTES, WHOLE, WeightPart, Weights


@dataclass(frozen=True, slots=True)
class LoraSlots:
    """`max_loras` adapters of at most `max_lora_rank`, with vLLM's defaults."""

    max_loras: int = 1
    max_lora_rank: int = 16


def with_lora_slots(weights: Weights, shape: ModelShape, slots: LoraSlots, dtype: str) -> Weights:
    """`weights` and the room for adapters of attention and feed-forward layers."""
    parts = tuple(_parts(shape, slots, dtype))
    basis = f"{weights.basis}, room for {slots.max_loras} LoRA adapter(s)"
    return replace(weights, parts=(*weights.parts, *parts), basis=basis)


def _parts(shape: ModelShape, slots: LoraSlots, dtype: str) -> Iterator[WeightPart]:
    size = VALUE_BYTES.get(dtype, 2.0)
    rank = slots.max_loras * slots.max_lora_rank
    hidden = shape.hidden_size
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    inner = 0 if shape.experts is not None else shape.intermediate_size
    whole, split = 3 * hidden + hidden, queries + queries + 2 * keys
    if inner:
        whole, split = whole + 2 * hidden + hidden, split + inner + 2 * inner
    for layer in range(shape.num_layers):
        for division, width in ((WHOLE, whole), (SPLIT, split)):
            values = rank * width
            yield WeightPart(LAYER, layer, division, dtype, values, values * size, is_copy=True)
