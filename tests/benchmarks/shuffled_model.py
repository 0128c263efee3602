"""The same model with its channels in another order.

Small models come as packages only in formats of 4 to 6 bits, whose groups of neighbouring inputs
lie on a grid: rounding such weights to 4 bits again loses next to nothing. The order of channels
means nothing to a model, so they may be exchanged together with all weights that they meet. The
function stays the same, and each group then holds values of many grids, as in a model that nobody
has quantised.
"""

from __future__ import annotations

import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.model_config import ModelConfig

_FROM_HIDDEN = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed_tokens", "lm_head")
_TO_HIDDEN = ("o_proj", "down_proj", "norm", "input_layernorm", "post_attention_layernorm")
_SANDWICH_NORMS = ("pre_feedforward_layernorm", "post_feedforward_layernorm")


@dataclass(frozen=True, slots=True)
class _Orders:
    """By module: the order of its outputs and of its inputs."""

    outputs: dict[str, Tensor]
    inputs: dict[str, Tensor]

    def moved(self, module: str, weight: Tensor) -> Tensor:
        """A weight [out, in], a bias or a norm."""
        if module in self.outputs:
            weight = weight[self.outputs[module]]
        if module in self.inputs:
            weight = weight[:, self.inputs[module]]
        return weight.contiguous()


def write_shuffled(folder: Path, target: Path) -> Path:
    """Copy a folder of a dense decoder, with the channels of all layers shuffled.

    Query and key rows keep their order, which rotary positions need; no group runs along them.
    """
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.safetensors*"))
    config = ModelConfig.from_folder(folder, folder.name)
    hidden = torch.randperm(config.hidden_size, generator=_numbers("hidden"))
    weights: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, weight in load_file(path).items():
            layer, module, _ = name.rsplit(".", 2)
            place = layer.partition("layers.")[2].partition(".")[0]
            weights[name] = _orders(config, hidden, place).moved(module, weight)
    save_file(weights, target / "model.safetensors", {"format": "pt"})
    return target


def _orders(config: ModelConfig, hidden: Tensor, layer: str) -> _Orders:
    inner = torch.randperm(config.intermediate_size, generator=_numbers(f"inner {layer}"))
    source, size = _numbers(f"values {layer}"), config.head_dim
    heads = [torch.randperm(size, generator=source) for _ in range(config.num_key_value_heads)]
    readers = config.num_attention_heads // config.num_key_value_heads
    values = [head + number * size for number, head in enumerate(heads)]
    read = [heads[n // readers] + n * size for n in range(config.num_attention_heads)]
    return _Orders(
        outputs=dict.fromkeys(_TO_HIDDEN + _SANDWICH_NORMS, hidden)
        | {"gate_proj": inner, "up_proj": inner, "v_proj": torch.cat(values)},
        inputs=dict.fromkeys(_FROM_HIDDEN, hidden)
        | {"down_proj": inner, "o_proj": torch.cat(read)},
    )


def _numbers(what: str) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(what.encode()))
