"""Random JSON schemas whose documents are all finite, for tests of structured output."""

from __future__ import annotations

import random
from typing import Any

_WORDS = ("name", "city", "price", "tags", "size", "kind", "owner", "notes", "is_open", "größe")
_PATTERNS = ("^[a-z]{2,8}$", "^[A-Z]{3}-[0-9]{4}$", "^(red|green|blue)$", "^#[0-9a-f]{6}$")


def random_schema(seed: int) -> dict[str, Any]:
    """An object schema of up to three levels; the same seed gives the same schema."""
    return _object(random.Random(seed), 2)


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(_WORDS, rng.randint(1, 4))
    return {
        "type": "object",
        "properties": {name: _any(rng, depth) for name in names},
        "required": [name for name in names if rng.random() < 0.7],
        "additionalProperties": False,
    }


def _any(rng: random.Random, depth: int) -> dict[str, Any]:
    scalars = (_integer, _number, _text, _pattern, _enum, _simple)
    nested = (_object, _array, _union)
    if depth and rng.random() < 0.4:
        return rng.choice(nested)(rng, depth - 1)
    return rng.choice(scalars)(rng)


def _integer(rng: random.Random) -> dict[str, Any]:
    low = rng.randint(-1000, 1000)
    return {"type": "integer", "minimum": low, "maximum": low + rng.choice((0, 7, 5000))}


def _number(rng: random.Random) -> dict[str, Any]:
    # A multiple, since the digits behind the point would have no end.
    return {"type": "number", "minimum": -2, "maximum": rng.randint(0, 99), "multipleOf": 0.25}


def _text(rng: random.Random) -> dict[str, Any]:
    return {"type": "string", "minLength": rng.randint(0, 3), "maxLength": rng.randint(3, 12)}


def _pattern(rng: random.Random) -> dict[str, Any]:
    return {"type": "string", "pattern": rng.choice(_PATTERNS)}


def _enum(rng: random.Random) -> dict[str, Any]:
    return {"enum": rng.sample([1, 2.5, 'a"b', "é\n😀", None, True, [1, 2], {"x": 0}], 3)}


def _simple(rng: random.Random) -> dict[str, Any]:
    return rng.choice(
        ({"type": "boolean"}, {"type": ["integer", "null"], "minimum": 0, "maximum": 9})
    )


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    least = rng.randint(0, 2)
    return {
        "type": "array",
        "items": _any(rng, depth),
        "minItems": least,
        "maxItems": least + rng.randint(0, 2),
    }


def _union(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_any(rng, depth), {"type": "null"}]}
