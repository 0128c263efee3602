"""JSON Schema of a settings file, for editors: made of the options' own types, help and limits.

Whether the engine can use a value, only `stoker config check` says.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from app.settings.options import options_by_key
from app.settings.sources import GENERAL_KEYS, PROFILES, Section

TEXT: Mapping[str, Any] = {"type": ["string", "number"]}
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TYPES = {bool: {"type": "boolean"}, int: {"type": "integer"}, float: {"type": "number"}}
_CHOICES = {
    "color": ("auto", "always", "never"),
    "theme": ("dark", "light", "16", 16),
}


def settings_schema(commands: Iterable[tuple[Section, Any]]) -> dict[str, Any]:
    """The schema of stoker.toml and config.toml; `commands` are those that have a section."""
    general = {key: {"enum": _CHOICES[key]} if key in _CHOICES else TEXT for key in GENERAL_KEYS}
    root = _table(general)
    sections = root["properties"]
    for (*path, name), command in commands:
        table = sections
        for step in path:
            table = table.setdefault(step, _table({}))["properties"]
        table[name] = _table(_command_keys(command))
    profile = {"$ref": "#/properties/serve"}  # with the same keys
    sections[PROFILES] = {"type": "object", "additionalProperties": profile}
    return {"$schema": _DIALECT, "title": "Settings of Stoker", **root}


def schema_of(kind: Any, default: object = None, help_text: str = "") -> dict[str, Any]:
    """A value of one type: a number, a switch, a text, or a list of texts."""
    parts = typing.get_args(kind) or (kind,)
    known: Mapping[str, Any] = next((_TYPES[part] for part in parts if part in _TYPES), TEXT)
    if any(typing.get_origin(part) in (list, tuple) for part in (kind, *parts)):
        known = {"type": ["array", *TEXT["type"]], "items": TEXT}
    schema = {**known, "description": help_text}
    if isinstance(default, Path):
        default = str(default)
    return schema if default in (None, "", ()) else {**schema, "default": default}


def _command_keys(command: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(inspect.unwrap(command.callback))
    keys = {
        key: _with_limits(schema_of(hints[param.name], param.default, param.help or ""), param)
        for key, param in options_by_key(command).items()
    }
    return {**keys, **getattr(command, "setting_schemas", {})}


def _with_limits(schema: dict[str, Any], param: Any) -> dict[str, Any]:
    limits = {"minimum": getattr(param, "min", None), "maximum": getattr(param, "max", None)}
    return {**schema, **{name: limit for name, limit in limits.items() if limit is not None}}


def _table(keys: Mapping[str, Any]) -> dict[str, Any]:
    """A section; a key may be written with underscores too, which no editor need suggest."""
    return {
        "type": "object",
        "properties": {key.replace("_", "-"): schema for key, schema in keys.items()},
        "patternProperties": {"_": True},
        "additionalProperties": False,
    }
