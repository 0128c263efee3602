"""Reads the matrices of a LoRA adapter, and fuses and divides them as the model's linears are."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import CorruptModelError
from engine.kernels.low_rank import Adapter, LowRank
from engine.lora_adapters import AdapterModule, adapter_weights
from engine.model_config import ModelConfig
from engine.models.safetensors_loader import unreadable
from engine.models.weights import scaled_range
from engine.rank_layout import RankPlace, layers_of

FUSED_LINEARS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "output": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


def read_low_ranks(
    folder: Path, modules: Sequence[AdapterModule], dtype: torch.dtype, device: torch.device
) -> Iterator[tuple[AdapterModule, LowRank]]:
    """The matrices of each module as they are stored, in `dtype`.

    CorruptModelError where the file cannot be read or holds what is no number.
    """
    path = adapter_weights(folder)
    try:
        with safe_open(path, framework="pt") as file:
            for module in modules:
                pair = [file.get_tensor(name) for name in (module.a, module.b)]
                if not all(bool(torch.isfinite(matrix).all()) for matrix in pair):
                    raise CorruptModelError(
                        f"{path}: {module.name} has values that are no numbers."
                    )
                a, b = (matrix.to(device, dtype) for matrix in pair)
                scale = torch.full((module.rank,), module.scaling, device=device)
                yield module, LowRank(a, b, scale)
    except SafetensorError as error:
        raise unreadable(path, error) from error


def decoder_adapter(
    found: Iterator[tuple[AdapterModule, LowRank]], config: ModelConfig, place: RankPlace
) -> Adapter:
    """For a decoder of ours: the part of the rank at `place`. The modules fit the model."""
    numbers = {layer: number for number, layer in enumerate(layers_of(config, place))}
    by_layer: dict[int, dict[str, LowRank]] = {}
    for module, low_rank in found:
        assert module.place is not None, module.name
        layer, name = module.place
        if layer in numbers:
            by_layer.setdefault(numbers[layer], {})[name] = low_rank
    spans = _spans(config, place)
    adapter: dict[Hashable, LowRank] = {}
    for number, parts in by_layer.items():
        for fused, names in FUSED_LINEARS.items():
            if any(name in parts for name in names):
                adapter[number, fused] = _fuse(fused, names, parts, spans)
    return adapter


def _spans(config: ModelConfig, place: RankPlace) -> Mapping[str, range]:
    """The outputs of the rank, and the inputs of linears that ranks sum."""
    queries = scaled_range(place.span(config.num_attention_heads), config.head_dim)
    keys = scaled_range(place.kv_heads(config.num_key_value_heads), config.head_dim)
    inner = place.span(config.intermediate_size)
    names = [name for names in FUSED_LINEARS.values() for name in names]
    return dict(zip(names, (queries, keys, keys, queries, inner, inner, inner), strict=True))


def _fuse(
    fused: str,
    names: Sequence[str],
    parts: Mapping[str, LowRank],
    spans: Mapping[str, range],
) -> LowRank:
    if fused in ("output", "down"):
        (name,) = names
        part, span = parts[name], spans[name]
        return LowRank(part.a[:, span.start : span.stop].contiguous(), part.b, part.scale)
    present = [parts[name] for name in names if name in parts]
    ranks = sum(len(part.a) for part in present)
    b = present[0].b.new_zeros(sum(len(spans[name]) for name in names), ranks)
    row = column = 0
    for name in names:
        span = spans[name]
        if name in parts:
            piece: Tensor = parts[name].b[span.start : span.stop]
            b[row : row + len(span), column : column + piece.shape[1]] = piece
            column += piece.shape[1]
        row += len(span)
    a = torch.cat([part.a for part in present])
    return LowRank(a, b, torch.cat([part.scale for part in present]))
