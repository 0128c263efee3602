"""Reading dataclasses back from JSON that somebody may have damaged."""

from __future__ import annotations

import os
import stat
from dataclasses import fields
from pathlib import Path
from typing import Any

_MOST_BYTES = 4 << 20
_NONE = type(None)
_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "str | None": (str, _NONE),
    "int | None": (int, _NONE),
    "float | None": (int, float, _NONE),
}
_WORDS = "tuple[str, ...]"


def known_fields(kind: Any, document: dict[str, Any]) -> dict[str, Any]:
    """The values of the keys that `kind` has, lists of words as tuples.

    Keys of a later version are passed over; ValueError for a value of another type.
    """
    values = {}
    for entry in fields(kind):
        if entry.name in document:
            values[entry.name] = _checked(entry.name, str(entry.type), document[entry.name])
    return values


def _checked(name: str, kind: str, value: Any) -> Any:
    if kind == _WORDS:
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise ValueError(name)
        return tuple(value)
    is_number = isinstance(value, bool) and kind != "bool"  # True is an int to Python only
    if is_number or not isinstance(value, _TYPES.get(kind, object)):
        raise ValueError(name)
    return value


def read_own_file(path: Path) -> str:
    """The text of a plain file of this user; OSError or ValueError for anything else.

    A pipe in its place would be waited for, a link or another user's file could say anything.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
            raise ValueError(f"{path} is no plain file of this user")
        return file.read(_MOST_BYTES).decode("utf-8")
