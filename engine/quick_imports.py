"""Imports of much code at the start of a process. Standard library only."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """For imports: they leave no garbage, and to look for it takes a seventh of their time.

    What there is at the end stays for good, and is not looked through any more.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
