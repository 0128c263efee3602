"""Hands the weights of a Llama decoder to the native kernel set, whose step is one call."""

from __future__ import annotations

import torch

from engine.kernels.native.library import Shape
from engine.kernels.native.model_step import NativeKernels, NativeModelStep
from engine.kv_sizing import KVCacheSpec
from engine.layers.rotary import inverse_frequencies
from engine.model_config import ModelConfig
from engine.models.weights import DecoderWeights, LayerWeights


def build_native_llama(
    config: ModelConfig,
    weights: DecoderWeights,
    kernels: NativeKernels,
    num_positions: int,
    spec: KVCacheSpec,
) -> NativeModelStep:
    """Pack `weights` layer by layer; `weights.layers` is emptied on the way."""
    model = NativeModelStep(kernels, _shape(config, kernels.num_threads, num_positions, spec), spec)
    for number in range(config.num_hidden_layers):
        _load_layer(model, number, weights.layers.pop(0))
    positions = torch.arange(num_positions, dtype=torch.float32)
    frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
    angles = torch.outer(positions, frequencies)
    model.load_ends(
        embedding=weights.embedding,
        final_norm=weights.final_norm,
        lm_head=weights.lm_head,
        cosines=angles.cos(),
        sines=angles.sin(),
    )
    return model


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
        attention_bias=config.attention_bias,
        mlp_bias=config.mlp_bias,
        eps=config.rms_norm_eps,
    )


def _load_layer(model: NativeModelStep, number: int, layer: LayerWeights) -> None:
    model.load_layer(
        number,
        input_norm=layer.input_norm,
        qkv=layer.qkv.weight,
        qkv_bias=layer.qkv.bias,
        output=layer.output.weight,
        output_bias=layer.output.bias,
        post_norm=layer.post_norm,
        gate_up=layer.gate_up.weight,
        gate_up_bias=layer.gate_up.bias,
        down=layer.down.weight,
        down_bias=layer.down.bias,
    )
