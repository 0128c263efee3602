"""Decoder weights: fuses q, k, v and gate, up while loading; checks that every parameter is there.

Names and shapes are those of a Llama checkpoint and its relatives; nothing here computes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.errors import CorruptModelError
from engine.model_config import ModelConfig
from engine.models.safetensors_loader import CheckpointTensor
from engine.rank_layout import WHOLE, RankPlace, layers_of, model_of_rank

_VISION = (
    *("vision_tower.", "multi_modal_projector.", "visual.", "vision_model.", "connector."),
    "image_newline",
)
_WITHOUT_HEAD = ("embed_tokens.", "layers.", "norm.")  # names in a decoder saved without its head
_IGNORED_SUFFIXES = (".rotary_emb.inv_freq",)  # older checkpoints store what config.json says


@dataclass(frozen=True, slots=True)
class LinearWeight:
    """[out, in] and an optional [out] bias; of experts one such pair behind the other."""

    weight: Tensor
    bias: Tensor | None

    def of_experts(self) -> list[LinearWeight]:
        """Each expert's own."""
        biases = [None] * len(self.weight) if self.bias is None else list(self.bias)
        return [LinearWeight(*pair) for pair in zip(self.weight, biases, strict=True)]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer; `qkv` and `gate_up` are fused along the output dimension.

    `post_norm` stands before the feed-forward block. Norms that may be None: of each query and key
    head, of the attention's and of the block's output. `sinks` [q heads] are scores. With a
    `router` the weights and biases of `gate_up` and `down` are those of all experts, [experts, ..].
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
    sinks: Tensor | None = None
    router: LinearWeight | None = None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All parameters, or those of one rank. `lm_head` is `embedding` itself when the two are tied.

    A pipeline stage that has no use for embedding or head has no rows of it.

    `layers` is a list so that a kernel set can take one layer out, pack it and let the original go.
    """

    embedding: Tensor
    layers: list[LayerWeights]
    final_norm: Tensor
    lm_head: Tensor


def load_decoder_weights(
    config: ModelConfig,
    tensors: Iterable[CheckpointTensor],
    dtype: torch.dtype,
    device: torch.device,
    place: RankPlace = WHOLE,
) -> DecoderWeights:
    """Copy `tensors`, or the part of each that the rank computes with, into fused parameters.

    Raises CorruptModelError.
    """
    weights = _allocate(config, dtype, device, place)
    targets = _targets(config, weights, place)
    elsewhere = _ElsewhereNames(config)
    seen: set[str] = set()
    unknown: list[str] = []
    for stored in tensors:
        name = _text_name(stored.name)
        if name is None:
            continue
        target = targets.get(name)
        if target is None:
            if not elsewhere.holds(name):
                unknown.append(name)
            continue
        if stored.shape != target.shape:
            raise CorruptModelError(
                f"Parameter {name} has shape {list(stored.shape)}, but config.json asks for "
                f"{list(target.shape)}. The two do not belong together."
            )
        target.fill(stored)
        seen.add(name)
    _require_complete(config, targets.keys() - seen, unknown)
    return weights


def _allocate(
    config: ModelConfig, dtype: torch.dtype, device: torch.device, place: RankPlace
) -> DecoderWeights:
    def new(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    def linear(out: int, inp: int, has_bias: bool, *stack: int) -> LinearWeight:
        return LinearWeight(new(*stack, out, inp), new(*stack, out) if has_bias else None)

    def summed(out: int, inp: int, has_bias: bool, *stack: int) -> LinearWeight:
        """One rank adds the bias."""
        result = linear(out, inp, has_bias, *stack)
        if result.bias is not None and place.tensor_rank:
            result.bias.zero_()
        return result

    part = model_of_rank(config, place)
    hidden, inner = part.hidden_size, part.intermediate_size
    q_size = part.num_attention_heads * part.head_dim
    kv_size = part.num_key_value_heads * part.head_dim
    experts = config.experts
    stack = () if experts is None else (experts.number,)
    layers = [
        LayerWeights(
            input_norm=new(hidden),
            qkv=linear(q_size + 2 * kv_size, hidden, config.attention_bias),
            output=summed(hidden, q_size, config.attention_output_bias),
            post_norm=new(hidden),
            gate_up=linear(2 * inner, hidden, config.mlp_bias, *stack),
            down=summed(hidden, inner, config.mlp_bias, *stack),
            q_norm=new(config.head_dim) if config.qk_norm else None,
            k_norm=new(config.head_dim) if config.qk_norm else None,
            attention_norm=new(hidden) if config.has_sandwich_norms else None,
            mlp_norm=new(hidden) if config.has_sandwich_norms else None,
            sinks=new(part.num_attention_heads) if config.has_sinks else None,
            router=None
            if experts is None
            else linear(experts.number, hidden, experts.has_router_bias),
        )
        for _ in range(part.num_hidden_layers)
    ]
    is_tied = config.tie_word_embeddings
    rows = len(place.span(config.vocab_size))
    embeds = place.is_first_stage or (is_tied and place.is_last_stage)
    embedding = new(rows if embeds else 0, hidden)
    head = embedding if is_tied else new(rows if place.is_last_stage else 0, hidden)
    return DecoderWeights(embedding, layers, new(hidden), head)


@dataclass(frozen=True, slots=True)
class _Target:
    """A parameter, or the piece of a fused one, and what fills it: `part` of one of `shape`.

    Where `are_pairs`, the stored last dimension holds what are the last two of `tensor`.
    """

    tensor: Tensor
    shape: tuple[int, ...]
    part: tuple[slice, ...] = ()
    are_pairs: bool = False

    def fill(self, stored: CheckpointTensor) -> None:
        found = stored.read(self.part)
        self.tensor.copy_(found.view(self.tensor.shape) if self.are_pairs else found)


def _rows(tensor: Tensor, part: range, size: int) -> _Target:
    shape = (size, *tensor.shape[1:])
    return _Target(tensor, shape, (slice(part.start, part.stop),) if len(part) < size else ())


def _columns(tensor: Tensor, part: range, size: int) -> _Target:
    shape = (tensor.shape[0], size)
    columns = (slice(None), slice(part.start, part.stop))
    return _Target(tensor, shape, columns if len(part) < size else ())


def _whole(tensor: Tensor) -> _Target:
    return _Target(tensor, tuple(tensor.shape))


def _targets(config: ModelConfig, weights: DecoderWeights, place: RankPlace) -> dict[str, _Target]:
    """Checkpoint name -> the (piece of a) parameter that it fills."""
    targets = {}
    vocabulary = place.span(config.vocab_size)
    if len(weights.embedding):
        targets["model.embed_tokens.weight"] = _rows(
            weights.embedding, vocabulary, config.vocab_size
        )
    if place.is_last_stage:
        targets["model.norm.weight"] = _whole(weights.final_norm)
        if not config.tie_word_embeddings:
            targets["lm_head.weight"] = _rows(weights.lm_head, vocabulary, config.vocab_size)
    for number, layer in zip(layers_of(config, place), weights.layers, strict=True):
        for name, target in _layer_targets(config, layer, place).items():
            targets[f"model.layers.{number}.{name}"] = target
    return targets


def _layer_targets(
    config: ModelConfig, layer: LayerWeights, place: RankPlace
) -> dict[str, _Target]:
    """Targets by the rest of the name below `model.layers.N.`."""
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    queries = scaled_range(place.span(heads), config.head_dim)
    keys = scaled_range(place.kv_heads(kv_heads), config.head_dim)
    targets = {f"{name}.weight": _whole(norm) for name, norm in _norms(layer).items()}
    sizes = [heads * config.head_dim, *[kv_heads * config.head_dim] * 2]
    projections = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    targets |= _split(projections, layer.qkv, [queries, keys, keys], sizes)
    targets |= _summed("self_attn.o_proj", layer.output, queries, sizes[0], place)
    if layer.sinks is not None:
        targets["self_attn.sinks"] = _rows(layer.sinks, place.span(heads), heads)
    size = config.intermediate_size
    if layer.router is None:
        return targets | _feed_forward("mlp", layer.gate_up, layer.down, size, place)
    targets |= {"mlp.gate.weight": _whole(layer.router.weight)}
    if layer.router.bias is not None:
        targets["mlp.gate.bias"] = _whole(layer.router.bias)
    if layer.gate_up.bias is not None:
        return targets | _interleaved_experts(layer, size, place)
    blocks = zip(layer.gate_up.of_experts(), layer.down.of_experts(), strict=True)
    for number, (gate_up, down) in enumerate(blocks):
        targets |= _feed_forward(f"mlp.experts.{number}", gate_up, down, size, place)
    return targets


def _feed_forward(
    name: str, gate_up: LinearWeight, down: LinearWeight, size: int, place: RankPlace
) -> dict[str, _Target]:
    """A block of `size` inner values."""
    inner = place.span(size)
    both = (f"{name}.gate_proj", f"{name}.up_proj")
    targets = _split(both, gate_up, [inner] * 2, [size] * 2)
    return targets | _summed(f"{name}.down_proj", down, inner, size, place)


def _summed(
    name: str, linear: LinearWeight, part: range, size: int, place: RankPlace
) -> dict[str, _Target]:
    """A linear whose products the ranks add up; one of them has the bias."""
    targets = {f"{name}.weight": _columns(linear.weight, part, size)}
    if linear.bias is not None and place.tensor_rank == 0:
        targets[f"{name}.bias"] = _whole(linear.bias)
    return targets


def _interleaved_experts(layer: LayerWeights, size: int, place: RankPlace) -> dict[str, _Target]:
    """As gpt-oss stores them: [experts, inputs, outputs], a gate beside its up."""
    inner = place.span(size)
    gate_up, down = layer.gate_up, layer.down
    assert gate_up.bias is not None
    assert down.bias is not None
    experts, hidden = down.bias.shape
    pairs = (slice(2 * inner.start, 2 * inner.stop),)
    every, is_part = slice(None), len(inner) < size
    weight = gate_up.weight.view(experts, 2, len(inner), hidden).permute(0, 3, 2, 1)
    bias = gate_up.bias.view(experts, 2, len(inner)).transpose(1, 2)
    targets = {
        "gate_up_proj": _Target(
            weight, (experts, hidden, 2 * size), (every, every, *pairs) if is_part else (), True
        ),
        "gate_up_proj_bias": _Target(
            bias, (experts, 2 * size), (every, *pairs) if is_part else (), True
        ),
        "down_proj": _Target(
            down.weight.transpose(1, 2),
            (experts, size, hidden),
            (every, slice(inner.start, inner.stop)) if is_part else (),
        ),
    }
    if place.tensor_rank == 0:
        targets["down_proj_bias"] = _whole(down.bias)
    return {f"mlp.experts.{name}": target for name, target in targets.items()}


def scaled_range(part: range, factor: int) -> range:
    """The values of the heads in `part`, `factor` each."""
    return range(part.start * factor, part.stop * factor)


def _split(
    names: tuple[str, ...], fused: LinearWeight, parts: list[range], sizes: list[int]
) -> dict[str, _Target]:
    """Pieces of a fused linear, whose outputs lie one behind the other."""
    targets = {}
    lengths = [len(part) for part in parts]
    for kind, tensor in (("weight", fused.weight), ("bias", fused.bias)):
        if tensor is not None:
            pieces = torch.split(tensor, lengths)
            for name, piece, part, size in zip(names, pieces, parts, sizes, strict=True):
                targets[f"{name}.{kind}"] = _rows(piece, part, size)
    return targets


class _ElsewhereNames:
    """Parameters of the model that another rank holds."""

    _ENDS = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")

    def __init__(self, config: ModelConfig) -> None:
        self._num_layers = config.num_hidden_layers
        self._is_tied = config.tie_word_embeddings
        alone = dataclasses.replace(config, num_hidden_layers=1, layer_windows=(None,))
        weights = _allocate(alone, torch.float32, torch.device("meta"), WHOLE)
        self._in_layer = _layer_targets(config, weights.layers[0], WHOLE).keys()

    def holds(self, name: str) -> bool:
        if name in self._ENDS:
            return not (self._is_tied and name == "lm_head.weight")
        number, _, rest = name.removeprefix("model.layers.").partition(".")
        is_layer = number.isdecimal() and int(number) < self._num_layers
        return is_layer and rest in self._in_layer


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


_OTHER_NAMES = {  # of Mixtral and gpt-oss
    ".block_sparse_moe.": ".mlp.",
    ".mlp.router.": ".mlp.gate.",
    ".w1.": ".gate_proj.",
    ".w3.": ".up_proj.",
    ".w2.": ".down_proj.",
}


def is_of_tower(name: str) -> bool:
    """Whether a parameter belongs to what turns images into soft tokens."""
    return name.removeprefix("model.").startswith(_VISION)


def _text_name(name: str) -> str | None:
    """The text decoder's name of a parameter; None for the parts of a model that sees."""
    for other, ours in _OTHER_NAMES.items():
        name = name.replace(other, ours)
    if is_of_tower(name):
        return None
    for nested in ("language_model.model.", "model.language_model.", "model.text_model."):
        if name.startswith(nested):
            return "model." + name.removeprefix(nested)
    if name.startswith(_WITHOUT_HEAD):
        return f"model.{name}"
    return name.removeprefix("language_model.")


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
