"""Hands the weights of a decoder to the native kernel set, whose step is one call.

What the families differ in is in ModelConfig, as for `engine.models.decoder`, its twin.
"""

from __future__ import annotations

import torch

from engine.kernels.native.library import Shape
from engine.kernels.native.model_step import NativeKernels, NativeModelStep, RotaryTensors
from engine.kv_sizing import KVCacheSpec
from engine.layers.rotary import inverse_frequencies
from engine.model_config import ModelConfig, RopeScaling
from engine.models.weights import DecoderWeights, LayerWeights

_ACTIVATIONS = {"silu": 0, "gelu_pytorch_tanh": 1}  # Activation in gemm.h


def build_native_decoder(
    config: ModelConfig,
    weights: DecoderWeights,
    kernels: NativeKernels,
    num_positions: int,
    spec: KVCacheSpec,
) -> NativeModelStep:
    """Pack `weights` layer by layer; `weights.layers` is emptied on the way."""
    model = NativeModelStep(kernels, _shape(config, kernels.num_threads, num_positions, spec), spec)
    places = {
        layer: (number, page)
        for number, group in enumerate(spec.groups)
        for page, layer in enumerate(group.layers)
    }
    for number in range(config.num_hidden_layers):
        _load_layer(model, number, weights.layers.pop(0), *places[number])
    rotary = local = _rotary(config, config.rope_theta, config.rope_scaling, num_positions)
    if config.local_rope_theta is not None:
        local = _rotary(config, config.local_rope_theta, None, num_positions)
    model.load_ends(weights.embedding, weights.final_norm, weights.lm_head, rotary, local)
    return model


def _rotary(
    config: ModelConfig, theta: float, scaling: RopeScaling | None, num_positions: int
) -> RotaryTensors:
    positions = torch.arange(num_positions, dtype=torch.float32)
    angles = torch.outer(positions, inverse_frequencies(config.head_dim, theta, scaling))
    return angles.cos(), angles.sin()


def _shape(config: ModelConfig, num_threads: int, num_positions: int, spec: KVCacheSpec) -> Shape:
    return Shape(
        num_layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        inner=config.intermediate_size,
        q_heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        vocab=config.vocab_size,
        num_positions=num_positions,
        block_size=spec.block_size,
        num_threads=num_threads,
        num_groups=len(spec.groups),
        num_pages=spec.layers_per_block,
        qkv_bias=config.attention_bias,
        output_bias=config.attention_output_bias,
        mlp_bias=config.mlp_bias,
        qk_norm=config.qk_norm,
        sandwich_norms=config.has_sandwich_norms,
        activation=_ACTIVATIONS[config.hidden_act],
        eps=config.rms_norm_eps,
        norm_offset=config.norm_offset,
        # As trained: the factor is rounded to the weights' format before it is applied.
        embedding_scale=float(torch.tensor(config.embedding_scale, dtype=torch.bfloat16)),
        score_scale=config.query_scale or config.head_dim**-0.5,
    )


def _load_layer(
    model: NativeModelStep, number: int, layer: LayerWeights, group: int, page: int
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
        output=layer.output.weight,
        output_bias=layer.output.bias,
        attention_norm=layer.attention_norm,
        post_norm=layer.post_norm,
        gate_up=layer.gate_up.weight,
        gate_up_bias=layer.gate_up.bias,
        down=layer.down.weight,
        down_bias=layer.down.bias,
        mlp_norm=layer.mlp_norm,
    )
