"""VisionTower: a model's image encoder and projector, run by transformers' modelling code.

The text decoder beside it is ours. Images go through one by one: several at once would take
several times the memory and, on a CPU, as long.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.errors import CorruptModelError
from engine.kernels.step_batch import FloatArray
from engine.messages import ImageInput
from engine.model_config import ModelConfig
from engine.models.quantized_tensors import checkpoint_tensors
from engine.models.transformers_weights import held_bytes, silence_loading
from engine.models.weights import is_of_tower

_TINY_TEXT = {  # of the decoder that the class brings along; its width is the projector's
    "vocab_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "layer_types": ["full_attention"],
}
_STATES, _INNER = 6, 2  # rows of a layer that are alive at once: x, its norm, q, k, v, attended
_FLOAT_BYTES = 4


class VisionTower:
    """`model` is transformers' model without its head, whose `get_image_features` ends in what
    stands for the soft tokens.
    """

    def __init__(self, model: Any, config: ModelConfig, num_threads: int) -> None:
        assert config.vision is not None, "a model without a tower"
        self._model = model
        self._vision = config.vision
        self._hidden_size = config.hidden_size
        self._num_threads = num_threads

    @property
    def weight_bytes(self) -> int:
        """Parameters and constant tables."""
        return held_bytes(self._model)

    def working_bytes(self, num_tokens: int) -> int:
        """What it takes while it runs, and what it leaves for a step of `num_tokens`."""
        tower = self._model.config.vision_config
        patches = (self._vision.image_size // tower.patch_size) ** 2
        numbers = patches * (_STATES * tower.hidden_size + _INNER * tower.intermediate_size)
        width = next(self._model.parameters()).element_size()
        return int(numbers * width) + num_tokens * self._hidden_size * _FLOAT_BYTES

    @torch.inference_mode()
    def encode(self, image: ImageInput) -> FloatArray:
        """Float32 [soft tokens, hidden] of one image."""
        pixels = torch.from_numpy(np.frombuffer(bytearray(image.pixels), dtype="<f4"))
        return self._encode(pixels.view(1, *image.shape))

    @torch.inference_mode()
    def run_dummy(self) -> None:
        """One image of zeros, for the memory that it takes."""
        self._encode(torch.zeros(1, *self._vision.pixel_shape))

    def _encode(self, pixels: Tensor) -> FloatArray:
        weight = next(self._model.parameters())
        with _threads(self._num_threads if weight.device.type == "cpu" else None):
            found = self._model.get_image_features(pixels.to(weight.device, weight.dtype))
            rows = found.pooler_output.reshape(-1, self._hidden_size)
        assert len(rows) == self._vision.tokens_per_image, rows.shape
        values: FloatArray = rows.float().cpu().numpy()
        return values


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """As many of torch's: native kernels leave it one, since theirs run the steps."""
    before = torch.get_num_threads()
    if count is None or count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def load_vision_tower(
    config: ModelConfig, device: torch.device, dtype: torch.dtype, num_threads: int
) -> VisionTower:
    """The tower of the checkpoint in `config.path`; of its text decoder nothing is read.

    CorruptModelError unless every parameter of it is there.
    """
    import transformers
    from transformers import AutoConfig

    silence_loading()
    tensors = checkpoint_tensors(Path(config.path), config.quantization, lambda *state: None)
    weights = {one.name: one.read().to(dtype) for one in tensors if is_of_tower(one.name)}
    try:
        settings = AutoConfig.from_pretrained(config.path, local_files_only=True)
        settings.text_config.update(_TINY_TEXT)
        if hasattr(settings, "quantization_config"):  # the weights are plain ones by now
            del settings.quantization_config
        whole, report = getattr(transformers, config.architecture).from_pretrained(
            None, config=settings, state_dict=weights, dtype=dtype, output_loading_info=True
        )
    except torch.OutOfMemoryError:
        raise
    except (OSError, RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptModelError(
            f"transformers cannot load the image tower of {config.path}: {error}"
        ) from error
    _require_complete(config, [name for name in report["missing_keys"] if is_of_tower(name)])
    model = whole.model
    model.language_model = None
    return VisionTower(model.eval().requires_grad_(False).to(device), config, num_threads)


def _require_complete(config: ModelConfig, missing: list[str]) -> None:
    if missing:
        raise CorruptModelError(
            f"{config.path} lacks {len(missing)} parameters of its image tower: "
            f"{', '.join(sorted(missing)[:5])}. Start it with --limit-mm-per-prompt "
            "'{\"image\": 0}' for text alone."
        )
