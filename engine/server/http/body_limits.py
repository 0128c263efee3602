"""How much one request body may hold, counted before anything reads it.

Reading JSON and checking fields happen on the event loop, in calls that nothing can interrupt. So
their time has a bound: by bytes, by the number of values, and by lists that stop at the first entry
that is wrong.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, TypeVar

from pydantic import Field
from starlette.requests import Request

from engine.server.errors import ApiError

MAX_BODY_BYTES = 16 << 20
"""Far above what any context length needs, far below what hurts the host."""

MAX_JSON_VALUES = 1 << 18
"""Numbers and texts of one body, where a key counts as two and a list or an object as eight, which
is what reading them takes; all together 30 to 80 ms.
"""

_WEIGHTS = {b",": 1, b":": 2, b"[": 8, b"{": 8}

MAX_MESSAGES = 16_384
MAX_TOOLS = 512

_SLICE_BYTES = 1 << 18

T = TypeVar("T")

CheckedList = Annotated[list[T], Field(fail_fast=True)]
"""A list that is refused at its first wrong entry: an error for each of a million takes minutes."""


async def read_json_body(request: Request, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """The JSON body, refused by type, size and number of values before it is parsed."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        # Also keeps web pages of other origins from posting without being asked first.
        raise ApiError(
            400, f"Content-Type must be application/json, got {media_type or 'nothing'}."
        )
    parts, size, weight = [], 0, 0
    async for part in request.stream():
        size += len(part)
        if size > max_bytes:
            raise ApiError(413, f"The body is larger than {max_bytes} bytes.")
        weight += _weight(part)
        parts.append(part)
    body = b"".join(parts)
    if weight > MAX_JSON_VALUES:  # much of it may stand inside texts
        await _check_values(body)
    return body


async def _check_values(body: bytes) -> None:
    count, counter = 0, ValueCounter()
    for start in range(0, len(body), _SLICE_BYTES):
        count += counter.feed(body[start : start + _SLICE_BYTES])
        if count > MAX_JSON_VALUES:
            raise ApiError(
                413,
                f"The body holds more than {MAX_JSON_VALUES} JSON values (a key counts as two, "
                "a list or an object as eight); send fewer of them, in several requests.",
            )
        await asyncio.sleep(0)


class ValueCounter:
    """Counts the values of a JSON text, piece by piece, by what stands between them."""

    def __init__(self) -> None:
        self._is_in_text = False
        self._is_escaped = False

    def feed(self, piece: bytes) -> int:
        """Weight of what stands outside texts in the next piece."""
        if not piece:  # nothing follows a backslash yet
            return 0
        if self._is_escaped:
            piece = piece[1:]
        self._is_escaped = (len(piece) - len(piece.rstrip(b"\\"))) % 2 == 1
        # What is escaped ends no text.
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        found = sum(map(_weight, parts[self._is_in_text :: 2]))
        self._is_in_text ^= len(parts) % 2 == 0
        return found


def _weight(piece: bytes) -> int:
    return sum(piece.count(mark) * weight for mark, weight in _WEIGHTS.items())
