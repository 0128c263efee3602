"""Values that a model wrote as bare text, as the types that the function's schema gives them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from engine.server.parsers.tool_calls.python_values import parse_python

_ALIKE = {"dict": "object", "list": "array", "int": "integer", "float": "number", "bool": "boolean"}
_NESTING = ("anyOf", "oneOf", "allOf")
_MOST_DEPTH = 8


def typed_value(text: str, schema: Mapping[str, Any] | None, *, is_text_unless_told: bool) -> Any:
    """`text` as a value that `schema` allows, or as it is where it can be none of these.

    Without a schema that tells, it is text or whatever JSON it is, as `is_text_unless_told` says.
    """
    kinds = _kinds(schema or {}, _MOST_DEPTH)
    if not kinds:
        return text if is_text_unless_told else _literal(text, text)
    if kinds == {"string"}:
        return text
    nothing = object()
    value = _literal(text, nothing)
    if value is nothing:
        return text
    if "string" not in kinds:
        return value
    return value if _kind_of(value) in kinds - {"string"} else text


def _kinds(schema: Mapping[str, Any], depth: int) -> set[str]:
    """The types that a schema allows; none where it tells none."""
    if depth == 0:
        return set()
    if "$ref" in schema:  # what it points to is elsewhere: a structure, or one of some words
        return {"object", "array", "string"}
    named = schema.get("type")
    words = named if isinstance(named, list) else [named]
    kinds = {_ALIKE.get(word, word) for word in words if isinstance(word, str)}
    if not kinds:
        values = schema.get("enum", [schema["const"]] if "const" in schema else [])
        kinds = {_kind_of(value) for value in values if isinstance(values, list)}
    for key in _NESTING:
        parts = schema.get(key)
        for part in parts if isinstance(parts, list) else []:
            kinds |= _kinds(part, depth - 1) if isinstance(part, Mapping) else set()
    return kinds | ({"integer"} if "number" in kinds else set())


def _literal(text: str, otherwise: Any) -> Any:
    """The value of a text that is JSON or a Python literal, as some models write it."""
    bare = text.strip()
    try:
        value = json.loads(bare)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        try:
            return parse_python(bare)
        except ValueError:
            return otherwise
    return value


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return "integer"
    kinds = ((int, "integer"), (float, "number"), (str, "string"), (list, "array"))
    found = next((kind for one, kind in kinds if isinstance(value, one)), None)
    return found or ("object" if isinstance(value, Mapping) else "null")
