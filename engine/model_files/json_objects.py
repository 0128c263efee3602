"""JSON objects in a model's files: bounded in size and depth, and an object at the top."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.errors import CorruptModelError, ModelError

LIMIT_BYTES = 25_000_000
"""Of one JSON text. The largest that are known, indices of 200 files, have 9 million; Python takes
twenty times as much memory while it reads one."""


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; CorruptModelError when it holds anything else."""
    return parse_json(_read(path), str(path))


def read_json_list(path: Path) -> list[Any]:
    """The JSON array in `path`; CorruptModelError when it holds anything else."""
    value = _parse(_read(path), str(path))
    if not isinstance(value, list):
        raise CorruptModelError(f"{path} holds {type(value).__name__}, not a list.")
    return value


def read_optional_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a model folder; empty when there is no such file."""
    return read_json(path) if path.is_file() else {}


def parse_json(text: bytes, source: str) -> dict[str, Any]:
    """The JSON object that is `text`; `source` names it in errors."""
    value = _parse(text, source)
    if not isinstance(value, dict):
        raise CorruptModelError(f"{source} holds {type(value).__name__}, not an object.")
    return value


def _read(path: Path) -> bytes:
    """At most one byte more than is allowed."""
    try:
        with path.open("rb") as file:
            return file.read(LIMIT_BYTES + 1)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from error


def _parse(text: bytes, source: str) -> Any:
    if len(text) > LIMIT_BYTES:
        raise CorruptModelError(
            f"{source} has more than {LIMIT_BYTES:,} bytes of JSON, which no model needs."
        )
    try:
        return json.loads(text.decode("utf-8"))
    except RecursionError:
        raise CorruptModelError(f"{source} is not valid JSON: it is nested too deep.") from None
    except ValueError as error:  # of the encoding, too
        raise CorruptModelError(f"{source} is not valid JSON: {error}.") from error
