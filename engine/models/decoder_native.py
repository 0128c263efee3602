"""Hands the weights of a decoder to the native kernel set, whose step is one call.

What the families differ in is in ModelConfig, as for `engine.models.decoder`, its twin.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from engine.kernels.native.library import RankMemory, Shape
from engine.kernels.native.model_step import NativeKernels, NativeModelStep, RotaryTensors
from engine.kernels.native.packed_cache import PackedFile
from engine.kernels.weight_formats import BF16, INT4, INT8
from engine.kv_sizing import KVCacheSpec
from engine.layers.rotary import inverse_frequencies
from engine.logger import get_logger
from engine.model_config import ModelConfig, RopeScaling
from engine.model_families import ExpertLayers
from engine.models.weights import DecoderWeights, LayerWeights
from engine.rank_layout import WHOLE, RankPlace, model_of_rank

logger = get_logger(__name__)

MEASURED_TOKENS = 128

LayerInputs: TypeAlias = dict[str, Tensor]
"""By the names that LayerTensors has for them, bf16 [inputs]: the mean square of each input of a
linear, over the mean of all.
"""

_ACTIVATIONS = {"silu": 0, "gelu_pytorch_tanh": 1, "clamped_swiglu": 2}  # Activation in gemm.h
_NO_EXPERTS = ExpertLayers(0, 0)
_FORMATS = {BF16: 0, INT8: 1, INT4: 2}  # Format in quantize.h


def build_native_decoder(
    config: ModelConfig,
    weights: DecoderWeights,
    kernels: NativeKernels,
    num_positions: int,
    spec: KVCacheSpec,
    place: RankPlace = WHOLE,
    ranks: RankMemory | None = None,
    inputs: Sequence[LayerInputs] = (),
) -> NativeModelStep:
    """Pack `weights` layer by layer; `weights.layers` is emptied on the way.

    `inputs` say for each layer, or none, by what int4 weighs its errors.
    """
    start = time.monotonic()
    shape = _shape(config, kernels, num_positions, spec, place)
    model = NativeModelStep(kernels, shape, spec, ranks)
    places = _places(spec)
    for number in range(len(weights.layers)):
        measured = inputs[number] if inputs else {}
        _load_layer(model, number, weights.layers.pop(0), *places[number], measured)
    rotaries = _rotaries(config, num_positions)
    model.load_ends(weights.embedding, weights.final_norm, weights.lm_head, *rotaries)
    formats = kernels.formats
    logger.info(
        "Packing weights (layers in %s, head in %s) took %.2f seconds",
        formats.layers,
        formats.head,
        time.monotonic() - start,
    )
    return model


def read_native_decoder(
    config: ModelConfig,
    packed: PackedFile,
    kernels: NativeKernels,
    num_positions: int,
    spec: KVCacheSpec,
    place: RankPlace = WHOLE,
    ranks: RankMemory | None = None,
) -> NativeModelStep:
    """The same model from what `packed_parts` gave; OSError when the file does not fit."""
    shape = _shape(config, kernels, num_positions, spec, place)
    model = NativeModelStep(kernels, shape, spec, ranks)
    model.read_packed(packed)
    for number, (group, page) in _places(spec).items():
        model.load_layer(number, group=group, page=page)
    rows = packed.parts[1]
    embedding = torch.frombuffer(rows, dtype=torch.bfloat16) if rows else torch.empty(0).bfloat16()
    table = embedding.view(-1, config.hidden_size)
    model.load_ends(table, None, None, *_rotaries(config, num_positions))
    return model


def packing_facts(
    config: ModelConfig, kernels: NativeKernels, place: RankPlace = WHOLE
) -> list[object]:
    """What packed weights depend on besides the checkpoint's files."""
    facts = dataclasses.asdict(config)
    for name in ("path", "served_name", "max_position_embeddings"):
        del facts[name]
    own: list[object] = []
    if place.world_size > 1:
        own += [place.rank, place.tensor_size, place.num_stages]
    if weighs_errors(config, kernels, place):
        own.append(f"inputs measured over {MEASURED_TOKENS} tokens")
    return [facts, kernels.instructions, dataclasses.asdict(kernels.formats), *own]


def weighs_errors(config: ModelConfig, kernels: NativeKernels, place: RankPlace) -> bool:
    """Whether int4 wants measured inputs: of a dense decoder that is whole here."""
    return kernels.formats.layers == INT4 and place == WHOLE and config.experts is None


def _places(spec: KVCacheSpec) -> dict[int, tuple[int, int]]:
    """Group and page of each layer's KV."""
    return {
        layer: (number, page)
        for number, group in enumerate(spec.groups)
        for page, layer in enumerate(group.layers)
    }


def _rotaries(config: ModelConfig, num_positions: int) -> tuple[RotaryTensors, RotaryTensors]:
    """Of layers that see everything, and of those with a window."""
    rotary = local = _rotary(config, config.rope_theta, config.rope_scaling, num_positions)
    if config.local_rope_theta is not None:
        local = _rotary(config, config.local_rope_theta, None, num_positions)
    return rotary, local


def _rotary(
    config: ModelConfig, theta: float, scaling: RopeScaling | None, num_positions: int
) -> RotaryTensors:
    positions = torch.arange(num_positions, dtype=torch.float32)
    angles = torch.outer(positions, inverse_frequencies(config.head_dim, theta, scaling))
    length = 1.0 if scaling is None else scaling.length
    return angles.cos() * length, angles.sin() * length


def _shape(
    config: ModelConfig,
    kernels: NativeKernels,
    num_positions: int,
    spec: KVCacheSpec,
    place: RankPlace,
) -> Shape:
    part, vocabulary = model_of_rank(config, place), place.span(config.vocab_size)
    experts = config.experts or _NO_EXPERTS
    return Shape(
        num_layers=part.num_hidden_layers,
        hidden=config.hidden_size,
        inner=part.intermediate_size,
        q_heads=part.num_attention_heads,
        kv_heads=part.num_key_value_heads,
        head_dim=config.head_dim,
        vocab=config.vocab_size,
        num_positions=num_positions,
        block_size=spec.block_size,
        num_threads=kernels.num_threads,
        num_groups=len(spec.groups),
        num_pages=spec.layers_per_block,
        qkv_bias=config.attention_bias,
        output_bias=config.attention_output_bias,
        mlp_bias=config.mlp_bias,
        qk_norm=config.qk_norm,
        sandwich_norms=config.has_sandwich_norms,
        sinks=config.has_sinks,
        activation=_ACTIVATIONS[config.hidden_act],
        layer_format=_FORMATS[kernels.formats.layers],
        head_format=_FORMATS[kernels.formats.head],
        fp8_cache=spec.dtype_bytes == 1,
        rank=place.tensor_rank,
        num_ranks=place.tensor_size,
        vocab_first=vocabulary.start,
        vocab_rows=len(vocabulary),
        head_rows=len(vocabulary) if place.is_last_stage else 0,
        num_experts=experts.number,
        experts_per_token=experts.per_token,
        normalized_experts=experts.is_normalized,
        router_bias=experts.has_router_bias,
        eps=config.rms_norm_eps,
        norm_offset=config.norm_offset,
        # As trained: the factor is rounded to the weights' format before it is applied.
        embedding_scale=float(torch.tensor(config.embedding_scale, dtype=torch.bfloat16)),
        score_scale=config.query_scale or config.head_dim**-0.5,
        score_cap=config.score_cap or 0.0,
        logit_cap=config.logit_cap or 0.0,
    )


def _load_layer(
    model: NativeModelStep,
    number: int,
    layer: LayerWeights,
    group: int,
    page: int,
    measured: LayerInputs,
) -> None:
    model.load_layer(
        number,
        group=group,
        page=page,
        input_norm=layer.input_norm,
        qkv=layer.qkv.weight,
        qkv_bias=layer.qkv.bias,
        q_norm=layer.q_norm,
        k_norm=layer.k_norm,
        sinks=layer.sinks,
        output=layer.output.weight,
        output_bias=layer.output.bias,
        attention_norm=layer.attention_norm,
        post_norm=layer.post_norm,
        router=None if layer.router is None else layer.router.weight,
        router_bias=None if layer.router is None else layer.router.bias,
        gate_up=layer.gate_up.weight,
        gate_up_bias=layer.gate_up.bias,
        down=layer.down.weight,
        down_bias=layer.down.bias,
        mlp_norm=layer.mlp_norm,
        **measured,
    )
