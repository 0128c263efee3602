"""Values of a file, checked one by one; CorruptModelError says which, what it is and the limit."""

from __future__ import annotations

import math
from typing import Any

from engine.errors import CorruptModelError

_SHOWN = 60
_LONGEST_WORD = 200


def shown(value: object) -> str:
    """`value` as an error quotes it: short, on one line."""
    text = str(value) if isinstance(value, float) else repr(value)[: 4 * _SHOWN]
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def whole_number(value: Any, what: str, low: int, high: int) -> int:
    """An int from `low` to `high`; 4096.0 is one, True and "4096" are none."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or (isinstance(value, float) and not value.is_integer()):
        raise CorruptModelError(f"{what} is {shown(value)}, not a whole number.")
    if not low <= value <= high:
        raise CorruptModelError(
            f"{what} is {_short(int(value))}; it can be from {low:,} to {high:,}."
        )
    return int(value)


def real_number(value: Any, what: str, low: float, high: float) -> float:
    """A finite number from `low` to `high`."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise CorruptModelError(f"{what} is {shown(value)}, not a number.")
    if not (low <= value <= high) or math.isnan(value):
        raise CorruptModelError(f"{what} is {shown(value)}; it can be from {low:g} to {high:g}.")
    return float(value)


def word(value: Any, what: str) -> str:
    """A name as configurations hold them: one printable line, not too long to be shown."""
    if not isinstance(value, str) or not value.isprintable() or len(value) > _LONGEST_WORD:
        raise CorruptModelError(f"{what} is {shown(value)}, not a word.")
    return value


def of_type(value: Any, what: str, kind: type, name: str) -> Any:
    """`value` if it is of the JSON type `name`."""
    if not isinstance(value, kind):
        raise CorruptModelError(f"{what} is {shown(value)}, not {name}.")
    return value


def _short(value: int) -> str:
    return f"{value:,}" if abs(value) < 1 << 80 else f"a number of {value.bit_length()} bits"
