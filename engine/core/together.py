"""Coroutines that run at once: all of them, which fail as one, or until the first is done."""

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


async def wait_any(*waits: Coroutine[Any, Any, Any] | asyncio.Task[Any]) -> None:
    """Return when the first of them is done; coroutines that are not are cancelled."""
    tasks = {wait: asyncio.ensure_future(wait) for wait in waits}
    await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
    for wait, task in tasks.items():
        if wait is not task:
            task.cancel()
