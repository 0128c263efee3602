"""A model's own sampling defaults, from generation_config.json beside its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.errors import CorruptModelError, RequestError
from engine.model_config import read_optional_json
from engine.sampling_params import SamplingParams

_FIELDS = {
    "repetition_penalty": float,
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
}


def load_sampling_defaults(folder: Path) -> dict[str, float]:
    """Settings that differ from SamplingParams' own; CorruptModelError when one is no number."""
    path = folder / "generation_config.json"
    config = read_optional_json(path)
    try:
        found: dict[str, Any] = {
            name: kind(config[name])
            for name, kind in _FIELDS.items()
            if config.get(name) is not None
        }
        SamplingParams(**found).validate()
    except (RequestError, TypeError, ValueError) as error:
        raise CorruptModelError(f"{path} has a sampling setting out of range: {error}") from error
    neutral = SamplingParams()
    return {name: value for name, value in found.items() if value != getattr(neutral, name)}
