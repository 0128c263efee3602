"""Decoder weights: fuses q, k, v and gate, up while loading; checks that every parameter is there.

Names and shapes are those of a Llama checkpoint and its relatives; nothing here computes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.errors import CorruptModelError
from engine.model_config import ModelConfig

_VISION = ("vision_tower.", "multi_modal_projector.")
_IGNORED_SUFFIXES = (".rotary_emb.inv_freq",)  # older checkpoints store what config.json says


@dataclass(frozen=True, slots=True)
class LinearWeight:
    """[out, in] and an optional [out] bias."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer; `qkv` and `gate_up` are fused along the output dimension.

    `post_norm` stands before the feed-forward block. The last four are None where the family has
    no such norm: of each query and key head, of the attention's and of the block's output.
    """

    input_norm: Tensor
    qkv: LinearWeight
    output: LinearWeight
    post_norm: Tensor
    gate_up: LinearWeight
    down: LinearWeight
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    attention_norm: Tensor | None = None
    mlp_norm: Tensor | None = None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All parameters. `lm_head` is `embedding` itself when the two are tied.

    `layers` is a list so that a kernel set can take one layer out, pack it and let the original go.
    """

    embedding: Tensor
    layers: list[LayerWeights]
    final_norm: Tensor
    lm_head: Tensor


def load_decoder_weights(
    config: ModelConfig,
    tensors: Iterable[tuple[str, Tensor]],
    dtype: torch.dtype,
    device: torch.device,
) -> DecoderWeights:
    """Copy `tensors` into fused parameters of `dtype` on `device`. Raises CorruptModelError."""
    weights = _allocate(config, dtype, device)
    targets = _targets(config, weights)
    seen: set[str] = set()
    unknown: list[str] = []
    for stored_name, tensor in tensors:
        name = _text_name(stored_name)
        if name is None:
            continue
        target = targets.get(name)
        if target is None:
            unknown.append(name)
            continue
        if tensor.shape != target.shape:
            raise CorruptModelError(
                f"Parameter {name} has shape {list(tensor.shape)}, but config.json asks for "
                f"{list(target.shape)}. The two do not belong together."
            )
        target.copy_(tensor)
        seen.add(name)
    _require_complete(config, targets.keys() - seen, unknown)
    return weights


def _allocate(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> DecoderWeights:
    def new(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    def linear(out: int, inp: int, has_bias: bool) -> LinearWeight:
        return LinearWeight(new(out, inp), new(out) if has_bias else None)

    hidden, inner = config.hidden_size, config.intermediate_size
    q_size = config.num_attention_heads * config.head_dim
    kv_size = config.num_key_value_heads * config.head_dim
    layers = [
        LayerWeights(
            input_norm=new(hidden),
            qkv=linear(q_size + 2 * kv_size, hidden, config.attention_bias),
            output=linear(hidden, q_size, config.attention_output_bias),
            post_norm=new(hidden),
            gate_up=linear(2 * inner, hidden, config.mlp_bias),
            down=linear(hidden, inner, config.mlp_bias),
            q_norm=new(config.head_dim) if config.qk_norm else None,
            k_norm=new(config.head_dim) if config.qk_norm else None,
            attention_norm=new(hidden) if config.has_sandwich_norms else None,
            mlp_norm=new(hidden) if config.has_sandwich_norms else None,
        )
        for _ in range(config.num_hidden_layers)
    ]
    embedding = new(config.vocab_size, hidden)
    head = embedding if config.tie_word_embeddings else new(config.vocab_size, hidden)
    return DecoderWeights(embedding, layers, new(hidden), head)


def _targets(config: ModelConfig, weights: DecoderWeights) -> dict[str, Tensor]:
    """Checkpoint name -> the (slice of a) parameter that it fills."""
    targets = {
        "model.embed_tokens.weight": weights.embedding,
        "model.norm.weight": weights.final_norm,
    }
    if not config.tie_word_embeddings:
        targets["lm_head.weight"] = weights.lm_head
    q_size = config.num_attention_heads * config.head_dim
    kv_size = config.num_key_value_heads * config.head_dim
    for number, layer in enumerate(weights.layers):
        head = f"model.layers.{number}"
        targets |= {f"{head}.{name}.weight": norm for name, norm in _norms(layer).items()}
        _split(
            targets,
            f"{head}.self_attn",
            ("q_proj", "k_proj", "v_proj"),
            layer.qkv,
            [q_size, kv_size, kv_size],
        )
        _split(targets, f"{head}.self_attn", ("o_proj",), layer.output, [config.hidden_size])
        _split(
            targets,
            f"{head}.mlp",
            ("gate_proj", "up_proj"),
            layer.gate_up,
            [config.intermediate_size] * 2,
        )
        _split(targets, f"{head}.mlp", ("down_proj",), layer.down, [config.hidden_size])
    return targets


def _norms(layer: LayerWeights) -> dict[str, Tensor]:
    """Their names in the checkpoint; with four of them the one before the block moves."""
    found = {"input_layernorm": layer.input_norm}
    if layer.attention_norm is None or layer.mlp_norm is None:
        found["post_attention_layernorm"] = layer.post_norm
    else:
        found["post_attention_layernorm"] = layer.attention_norm
        found["pre_feedforward_layernorm"] = layer.post_norm
        found["post_feedforward_layernorm"] = layer.mlp_norm
    if layer.q_norm is not None and layer.k_norm is not None:
        found["self_attn.q_norm"] = layer.q_norm
        found["self_attn.k_norm"] = layer.k_norm
    return found


def _text_name(name: str) -> str | None:
    """The text decoder's name of a parameter; None for the parts of a model that sees."""
    if name.removeprefix("model.").startswith(_VISION):
        return None
    for nested in ("language_model.model.", "model.language_model."):
        if name.startswith(nested):
            return "model." + name.removeprefix(nested)
    return name.removeprefix("language_model.")


def _split(
    targets: dict[str, Tensor],
    prefix: str,
    parts: tuple[str, ...],
    fused: LinearWeight,
    sizes: list[int],
) -> None:
    for part, piece in zip(parts, torch.split(fused.weight, sizes), strict=True):
        targets[f"{prefix}.{part}.weight"] = piece
    if fused.bias is not None:
        for part, piece in zip(parts, torch.split(fused.bias, sizes), strict=True):
            targets[f"{prefix}.{part}.bias"] = piece


def _require_complete(config: ModelConfig, missing: Iterable[str], unknown: list[str]) -> None:
    absent = sorted(missing)
    if absent:
        raise CorruptModelError(
            f"The checkpoint in {config.path} lacks {len(absent)} parameters: {_some(absent)}."
        )
    surplus = [name for name in unknown if not _may_ignore(config, name)]
    if surplus:
        raise CorruptModelError(
            f"The checkpoint in {config.path} holds {len(surplus)} parameters that "
            f"{config.architecture} with this config.json does not use: {_some(sorted(surplus))}. "
            "Results would be wrong."
        )


def _may_ignore(config: ModelConfig, name: str) -> bool:
    if name == "lm_head.weight" and config.tie_word_embeddings:
        return True
    return name.endswith(_IGNORED_SUFFIXES)


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown}, ..."
