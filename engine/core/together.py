"""Coroutines that run at once, and fail as one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


async def all_together(work: Iterable[Coroutine[Any, Any, ResultT]]) -> list[ResultT]:
    """Their results in order. The first failure is raised once all others are cancelled and over;
    so is a cancellation from outside.
    """
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
