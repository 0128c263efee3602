"""--limit-mm-per-prompt: how many images one prompt may have, as vLLM's JSON says it.

Counts per kind of input, a number or {"count": number}; a kind that is left out keeps its default.
"""

from __future__ import annotations

from engine.errors import ConfigError
from engine.json_flags import json_object

DEFAULT_IMAGES = 16
"""Of one prompt. Each is held unpacked while its request lives: 10 MB for Gemma 3."""

_FLAG = "--limit-mm-per-prompt"
_EXAMPLE = '{"image": 4}'
_KINDS = ("image", "video", "audio")
_MOST = 999  # vLLM's own default


def parse_image_limit(text: str | None) -> int | None:
    """Most images of a prompt; None where the flag says nothing about them.

    ConfigError for what is no such JSON, and for videos or sound, which no model here takes.
    """
    if text is None:
        return None
    counts = {
        kind: _count(kind, value) for kind, value in json_object(_FLAG, text, _EXAMPLE).items()
    }
    for kind in ("video", "audio"):
        if counts.get(kind):
            raise ConfigError(f"{_FLAG}: {kind} inputs cannot be had here; give 0 or leave it out.")
    return counts.get("image")


def _count(kind: str, value: object) -> int:
    if kind not in _KINDS:
        raise ConfigError(f"{_FLAG}: {kind!r} is not known; use {', '.join(_KINDS)}.")
    count = value.get("count", DEFAULT_IMAGES) if isinstance(value, dict) else value
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= _MOST:
        raise ConfigError(
            f"{_FLAG}: the number for {kind} must be from 0 to {_MOST}, as in {_EXAMPLE}."
        )
    return count
