"""A model's own sampling defaults, from generation_config.json beside its weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.errors import ConfigError, CorruptModelError, RequestError
from engine.model_files.json_objects import read_optional_json
from engine.sampling_params import SamplingParams

_FILE = "generation_config.json"
_FIELDS = {
    "repetition_penalty": float,
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
}


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """`settings` are fields of SamplingParams that differ from its own defaults.

    `max_tokens` (the file's max_new_tokens) is for requests that bring no limit; it is cut to the
    room that a prompt leaves.
    """

    settings: dict[str, float] = field(default_factory=dict)
    max_tokens: int | None = None

    def as_dict(self) -> dict[str, float]:
        """The settings with `max_tokens` among them, as the log shows them."""
        return self.settings | ({} if self.max_tokens is None else {"max_tokens": self.max_tokens})


def load_sampling_defaults(folder: Path, source: str = "auto") -> SamplingDefaults:
    """What `--generation-config` SOURCE says: auto (of the model in `folder`), vllm, or a folder.

    CorruptModelError when a setting is no number or out of range.
    """
    if source == "vllm":
        return SamplingDefaults()
    path = folder / _FILE if source == "auto" else _named(Path(source).expanduser())
    config = read_optional_json(path)
    try:
        found: dict[str, Any] = {
            name: kind(config[name])
            for name, kind in _FIELDS.items()
            if config.get(name) is not None
        }
        limit = config.get("max_new_tokens")
        max_tokens = None if limit is None else int(limit)
        SamplingParams(**found, max_tokens=max_tokens).validate()
    except (RequestError, TypeError, ValueError) as error:
        raise CorruptModelError(f"{path} has a sampling setting out of range: {error}") from error
    neutral = SamplingParams()
    settings = {name: value for name, value in found.items() if value != getattr(neutral, name)}
    return SamplingDefaults(settings, max_tokens)


def _named(folder: Path) -> Path:
    if not (folder / _FILE).is_file():
        raise ConfigError(
            f"--generation-config {folder}: the folder holds no {_FILE}; give one that does, auto "
            "(the model's own) or vllm (none)."
        )
    return folder / _FILE
