"""Which event loop an API server runs in: uvloop's where it is installed, else Python's own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


def run(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """As asyncio.run. uvloop has no wheels for some platforms; nothing but the cost differs."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)
