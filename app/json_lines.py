"""Files with one JSON value a line, as data sets, traces and batches are: read line by line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from app.errors import StokerError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # some programs begin a file with it


def read_json_lines(path: Path, refuse: Callable[[str], StokerError]) -> Iterator[tuple[int, Any]]:
    """The number and the value of each line that holds something, as they are asked for.

    Only a line feed ends a line: a text may hold the characters that do elsewhere. `refuse` makes
    the error of what cannot be read, and of a line that is no JSON which a server would read.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                text = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
                if text.strip():
                    yield number, _value(text, f"line {number}", refuse)
    except OSError as error:
        raise refuse(f"cannot be read: {error}") from error


def _value(line: bytes, place: str, refuse: Callable[[str], StokerError]) -> Any:
    try:
        value = json.loads(line.decode())
        # Lone surrogates and NaN can be read, but not sent.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except RecursionError as error:
        raise refuse(f"{place} is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise refuse(f"cannot be read: {place} is no UTF-8") from error
    except ValueError as error:
        raise refuse(f"{place} is not JSON: {error}") from error
    return value
