"""How a reader of a bad file ended."""

from __future__ import annotations

from collections.abc import Callable

from app.errors import StokerError
from engine.errors import ModelError


def refusal_of(read: Callable[[], object]) -> ModelError | StokerError | None:
    """The one error that it may end with; None when it read the file. Others come through."""
    try:
        read()
    except (ModelError, StokerError) as error:
        return error
    return None
