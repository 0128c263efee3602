"""The dense layers that sentence-transformers puts behind the pooled vector."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from engine.errors import CorruptModelError
from engine.model_config import ModelConfig
from engine.model_files.sentence_files import DenseFile

_WEIGHTS = "model.safetensors"


def load_sentence_head(
    config: ModelConfig, device: torch.device
) -> Callable[[Tensor], Tensor] | None:
    """Float32 [hidden] to [embedding_size]; None where the pooled vector is all.

    Raises CorruptModelError for weights that are missing or of another shape.
    """
    layers = [_layer(Path(config.path), dense, device) for dense in config.sentence.dense]
    sizes = [config.hidden_size, *(dense.out_features for dense in config.sentence.dense)]
    for size, dense in zip(sizes, config.sentence.dense, strict=False):
        if dense.in_features != size:
            raise CorruptModelError(
                f"{config.path}/{dense.folder} takes vectors of {dense.in_features} numbers, and "
                f"what stands before it gives {size}."
            )
    if not layers:
        return None

    @torch.inference_mode()
    def head(vector: Tensor) -> Tensor:
        vector = vector.to(device)
        for layer in layers:
            vector = layer(vector)
        return vector

    return head


def _layer(folder: Path, dense: DenseFile, device: torch.device) -> Callable[[Tensor], Tensor]:
    path = folder / dense.folder / _WEIGHTS
    if not path.is_file():
        raise CorruptModelError(
            f"{path} is not there; the dense layer's weights are read from safetensors only."
        )
    try:
        tensors = {name: t.float().to(device) for name, t in load_file(path).items()}
    except (SafetensorError, OSError) as error:
        raise CorruptModelError(f"{path} cannot be read: {error}.") from error
    shapes = {
        "linear.weight": [dense.out_features, dense.in_features],
        "linear.bias": [dense.out_features],
        "residual.weight": [dense.out_features, dense.in_features],
    }
    for name, shape in shapes.items():
        if (found := tensors.get(name)) is not None and list(found.shape) != shape:
            raise CorruptModelError(
                f"{path}: {name} has shape {list(found.shape)}; {shape} is asked for."
            )
    if "linear.weight" not in tensors:
        raise CorruptModelError(f"{path} holds no linear.weight.")
    weight, bias = tensors["linear.weight"], tensors.get("linear.bias")
    residual = tensors.get("residual.weight")
    activation = getattr(nn, dense.activation)()

    def run(vector: Tensor) -> Tensor:
        out: Tensor = activation(nn.functional.linear(vector, weight, bias))
        if not dense.has_residual:
            return out
        return out + (vector if residual is None else nn.functional.linear(vector, residual))

    return run
