"""Checkpoints into models of transformers: safetensors only, and nothing made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from engine.errors import CorruptModelError
from engine.logger import get_logger
from engine.model_config import ModelConfig
from engine.models.quantized_tensors import QuantizedTensor, checkpoint_tensors

logger = get_logger(__name__)


def from_pretrained(
    model_class: Any, config: ModelConfig, settings: Any, dtype: torch.dtype, **options: Any
) -> Any:
    """The checkpoint of `config`, ready to be run; CorruptModelError unless every parameter is
    there. One that is missing would be made up at random.

    `settings` are transformers' own configuration of it; `options` go to transformers.
    """
    from safetensors import SafetensorError

    silence_loading()
    try:
        model, report = model_class.from_pretrained(
            **_source(config, settings, dtype),
            dtype=dtype,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            **options,
        )
    except torch.OutOfMemoryError:
        raise
    except (OSError, RuntimeError, ValueError, KeyError, SafetensorError) as error:
        raise CorruptModelError(
            f"transformers cannot load the weights in {config.path}: {error}"
        ) from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise CorruptModelError(
            f"{config.path} lacks {len(missing)} parameters that config.json promises: "
            f"{', '.join(missing[:5])}."
        )
    unused = sorted(report["unexpected_keys"])
    if unused:
        logger.warning(
            "%d tensors of the checkpoint are not used: %s.", len(unused), ", ".join(unused[:5])
        )
    return model.eval().requires_grad_(False)


def silence_loading() -> None:
    """What transformers would warn of while it loads is checked by whoever lets it."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def held_bytes(model: Any) -> int:
    """Parameters and constant tables of a model of transformers; what is tied counts once."""
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def _source(config: ModelConfig, settings: Any, dtype: torch.dtype) -> dict[str, Any]:
    """Where the weights come from; those of a quantised checkpoint are plain ones by then.

    What was dequantised is held in `dtype`, the rest as the file has it: transformers keeps some
    parameters in float32.
    """
    if config.quantization is None:
        return {"pretrained_model_name_or_path": config.path, "config": settings}
    if hasattr(settings, "quantization_config"):  # else it is beside the text model's settings
        del settings.quantization_config
    tensors = checkpoint_tensors(Path(config.path), config.quantization, lambda *state: None)
    weights = {
        tensor.name: tensor.read().to(dtype)
        if isinstance(tensor, QuantizedTensor)
        else tensor.read()
        for tensor in tensors
    }
    return {"pretrained_model_name_or_path": None, "config": settings, "state_dict": weights}
