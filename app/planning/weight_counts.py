"""Counts the weights of a model from its shape, where there are no files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from app.errors import StokerError, UsageError
from app.planning.model_shapes import (
    Experts,
    LatentAttention,
    ModelShape,
    RecordedSize,
    VisionTower,
)
from app.planning.weight_sizes import (
    EMBEDDING,
    FP8_BYTES,
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

_MXFP4_BYTES = 17 / 32  # 32 values of 4 bits share a scale of one byte


def count_weights(shape: ModelShape) -> Weights:
    """Weights of a shape without files; StokerError where the shape alone does not tell."""
    if shape.is_plain:
        raise _cannot_count(shape, f"{shape.architecture} is known only from the files")
    if shape.has_unknown_tower:
        raise _cannot_count(shape, "its vision or audio part is known only from the files")
    if shape.quantization not in (None, "fp8", "mxfp4") and shape.packed_bits is None:
        raise _cannot_count(shape, f"{shape.quantization} packs tensors as only the files tell")
    counted = "counted from the shape"
    method = f"{counted}, {shape.quantization} checkpoint" if shape.quantization else counted
    return Weights(tuple(_count(shape)), method)


def recorded_weights(shape: ModelShape, size: RecordedSize) -> Weights:
    """Weights of a shape whose parameters are known as sums: what no table is, all layers share."""
    return Weights(tuple(_spread(shape, size)), "parameters as its authors' code has them")


def _spread(shape: ModelShape, size: RecordedSize) -> Iterator[WeightPart]:
    table = shape.vocab_size * shape.hidden_size
    rest = size.parameters - size.experts - size.tower - table
    yield _part(shape, EMBEDDING, None, SPLIT, table)
    if not shape.tie_word_embeddings:
        yield _part(shape, HEAD, None, SPLIT, table)
        rest -= table
    if size.tower:
        yield _part(shape, TOWER, None, SPLIT, size.tower)
    for layer in range(shape.num_layers):
        yield _linear(shape, layer, SPLIT, _share(rest, layer, shape.num_layers))
        if size.experts:
            values = _share(size.experts, layer, shape.num_layers)
            yield replace(_linear(shape, layer, SPLIT, values), is_expert=True)


def _share(total: int, layer: int, num_layers: int) -> int:
    """Whole numbers that add up to `total`."""
    return total * (layer + 1) // num_layers - total * layer // num_layers


def _count(shape: ModelShape) -> Iterator[WeightPart]:
    table = shape.vocab_size * shape.hidden_size
    yield _part(shape, EMBEDDING, None, SPLIT, table)
    for layer in range(shape.num_layers):
        yield from _count_layer(shape, layer)
    yield _part(shape, HEAD, None, WHOLE, shape.hidden_size)  # the last norm
    if not shape.tie_word_embeddings:
        yield _part(shape, HEAD, None, SPLIT, table)
    if shape.vision is not None:
        values = _vision_values(shape.vision, shape.hidden_size)
        yield _part(shape, TOWER, None, SPLIT, values)


def _count_layer(shape: ModelShape, layer: int) -> Iterator[WeightPart]:
    norms = shape.norms_per_layer * shape.hidden_size
    if shape.latent is not None:
        yield from _count_latent(shape, shape.latent, layer)
    else:
        yield from _count_attention(shape, layer)
        norms += 2 * shape.head_dim if shape.has_qk_norm else 0
    yield _part(shape, LAYER, layer, WHOLE, norms)
    experts = shape.experts
    if experts is not None and layer >= experts.first_dense_layers:
        yield from _count_experts(shape, experts, layer)
        return
    hidden, inner = shape.hidden_size, shape.intermediate_size
    yield _linear(shape, layer, SPLIT, 3 * hidden * inner)
    if shape.has_mlp_bias:
        yield _part(shape, LAYER, layer, SPLIT, 2 * inner + hidden)


def _count_attention(shape: ModelShape, layer: int) -> Iterator[WeightPart]:
    hidden = shape.hidden_size
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    yield _linear(shape, layer, SPLIT, 2 * hidden * queries)  # queries and output
    yield _linear(shape, layer, KV_HEADS, 2 * hidden * keys)
    extra = shape.num_heads if shape.has_sinks else 0
    extra += queries + 2 * keys if shape.has_qkv_bias else 0
    extra += hidden if shape.has_output_bias else 0
    if extra:
        yield _part(shape, LAYER, layer, SPLIT, extra)


def _count_latent(shape: ModelShape, latent: LatentAttention, layer: int) -> Iterator[WeightPart]:
    hidden, heads = shape.hidden_size, shape.num_heads
    query = heads * (latent.nope_dim + latent.rope_dim)
    down = hidden * (latent.kv_lora_rank + latent.rope_dim)
    norms = latent.kv_lora_rank
    up = latent.kv_lora_rank * heads * (latent.nope_dim + latent.value_dim)
    if latent.q_lora_rank is None:
        up += hidden * query
    else:
        down += hidden * latent.q_lora_rank
        norms += latent.q_lora_rank
        up += latent.q_lora_rank * query
    yield _linear(shape, layer, WHOLE, down)
    yield _part(shape, LAYER, layer, WHOLE, norms)
    yield _linear(shape, layer, SPLIT, up + heads * latent.value_dim * hidden)


def _count_experts(shape: ModelShape, experts: Experts, layer: int) -> Iterator[WeightPart]:
    hidden = shape.hidden_size
    router = hidden * experts.number
    router += experts.number if experts.has_router_bias else 0
    router += hidden if experts.has_shared_gate else 0
    yield _part(shape, LAYER, layer, WHOLE, router)
    values = experts.number * 3 * hidden * experts.size
    yield replace(_linear(shape, layer, SPLIT, values, is_expert=True), is_expert=True)
    if experts.has_bias:
        biases = experts.number * (2 * experts.size + hidden)
        yield replace(_part(shape, LAYER, layer, SPLIT, biases), is_expert=True)
    if experts.shared_size:
        yield _linear(shape, layer, SPLIT, 3 * hidden * experts.shared_size)


def _vision_values(vision: VisionTower, decoder_size: int) -> int:
    size, inner = vision.hidden_size, vision.intermediate_size
    attention = 4 * (size * size + size)
    feed_forward = size * inner + inner + inner * size + size
    layer = attention + feed_forward + 4 * size
    embeddings = 3 * vision.patch_size**2 * size + size + vision.num_patches * size
    projection = size * decoder_size + size
    return vision.num_layers * layer + embeddings + 2 * size + projection


def _part(
    shape: ModelShape, place: str, layer: int | None, division: str, values: int
) -> WeightPart:
    size = VALUE_BYTES.get(shape.dtype)
    if size is None:
        raise _cannot_count(shape, f"its number format {shape.dtype} is not known")
    return WeightPart(place, layer, division, shape.dtype, values, values * size)


def _linear(
    shape: ModelShape, layer: int, division: str, values: int, *, is_expert: bool = False
) -> WeightPart:
    """A linear layer in the checkpoint's own format; gpt-oss packs its experts alone."""
    part = replace(_part(shape, LAYER, layer, division, values), is_linear=True)
    if shape.quantization == "fp8":
        return replace(part, dtype="fp8", num_bytes=values * FP8_BYTES)
    if shape.packed_bits is not None:
        size = _packed_bytes(shape.packed_bits, shape.packed_group)
        return replace(part, dtype=f"int{shape.packed_bits}", num_bytes=values * size)
    if shape.quantization == "mxfp4" and is_expert:
        return replace(part, dtype="mxfp4", num_bytes=values * _MXFP4_BYTES)
    return part


def _packed_bytes(bits: int, group: int | None) -> float:
    """Of one value; each group has a factor of two bytes and a zero point of as many bits."""
    return bits / 8 + ((2 + bits / 8) / group if group else 0.0)


def _cannot_count(shape: ModelShape, reason: str) -> StokerError:
    return UsageError(
        f"the weights of {shape.name} cannot be counted from its shape: {reason}",
        hint="give the model's folder or Hugging Face id",
    )
