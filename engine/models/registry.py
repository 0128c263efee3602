"""Which code runs a model on which kernel set, found by name at run time.

One decoder runs every architecture that `engine.model_families` knows.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch

from engine.errors import ModelError
from engine.kernels.kernel_set import ModelStep
from engine.model_config import ModelConfig
from engine.model_families import supported_architectures
from engine.models.quantized_tensors import checkpoint_tensors
from engine.models.weights import DecoderWeights, load_decoder_weights
from engine.rank_layout import WHOLE, RankPlace

ModelClass = Callable[..., ModelStep]
"""From ModelConfig, DecoderWeights, kernels, positions and KVCacheSpec; then a rank's place."""

_DECODERS = {
    "native": "engine.models.decoder_native:build_native_decoder",
    "reference": "engine.models.decoder:DecoderModel",
    "triton": "engine.models.decoder_triton:TritonDecoder",
}


def kernel_sets_of(architecture: str, implementation: str = "stoker") -> list[str]:
    """The kernel sets that `architecture` has code for; ModelError names those that exist."""
    if implementation == "transformers":
        return ["reference", "triton"]
    known = supported_architectures()
    if architecture not in known:
        raise ModelError(
            f"Model architecture {architecture} is not supported; this engine runs "
            f"{', '.join(known)}."
        )
    return list(_DECODERS)


def model_class(kernel_set: str = "reference") -> ModelClass:
    """What builds the decoder on `kernel_set`, one of `kernel_sets_of`."""
    module_name, _, name = _DECODERS[kernel_set].partition(":")
    return cast(ModelClass, getattr(importlib.import_module(module_name), name))


def load_weights(
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    on_shard: Callable[[int, int], None],
    place: RankPlace = WHOLE,
) -> DecoderWeights:
    """Read the rank's part of the checkpoint in `config.path`; `on_shard(done, total)` reports
    progress.
    """
    tensors = checkpoint_tensors(Path(config.path), config.quantization, on_shard)
    return load_decoder_weights(config, tensors, dtype, device, place)
