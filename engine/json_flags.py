"""Flags whose value is a JSON object."""

from __future__ import annotations

import json
from typing import Any

from engine.errors import ConfigError


def json_object(flag: str, text: str, example: str) -> dict[str, Any]:
    """The object that `text` holds; ConfigError, with the example, where it is none."""
    try:
        asked = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{flag} {text!r} is no JSON: {error}.") from error
    if not isinstance(asked, dict):
        raise ConfigError(f"{flag} {text!r} is no JSON object like {example}.")
    return asked
