"""Names of keys as they are printed on keyboards."""

from __future__ import annotations

_NAMES = {
    "question_mark": "?",
    "space": "Space",
    "plus": "+",
    "minus": "-",
    "equals_sign": "=",
    "slash": "/",
    "colon": ":",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "escape": "Esc",
}


def key_text(keys: str) -> str:
    """`q,ctrl+c,f10` as `q, Ctrl-C, F10`."""
    return ", ".join(_one(key) for key in keys.split(","))


def _one(key: str) -> str:
    *modifiers, name = key.strip().split("+")
    words = [modifier.capitalize() for modifier in modifiers]
    if name in _NAMES:
        return "-".join([*words, _NAMES[name]])
    is_single_small = len(name) == 1 and not words
    return "-".join([*words, name if is_single_small else name.capitalize()])
