"""Imports of much code at the start of a process. Standard library only."""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
import types
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


_META = "torch._meta_registrations"  # shapes of operators for compilers and the device `meta`


def import_torch() -> None:
    """Import torch without its tables for compilers, a quarter of its import time.

    A compiler imports them by itself; before the device `meta` is used, `complete_torch` does.
    """
    if "torch" in sys.modules:
        return
    sys.modules[_META] = types.ModuleType(_META)
    try:
        torch = importlib.import_module("torch")
    finally:
        del sys.modules[_META]
    vars(torch).pop("_meta_registrations", None)


def complete_torch() -> None:
    """Import what `import_torch` left out, if it did."""
    importlib.import_module(_META)
