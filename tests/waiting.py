"""Tests wait for a condition, never for a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import psutil


def wait_for(
    condition: Callable[[], bool],
    timeout_s: float = 60.0,
    *,
    else_say: Callable[[], str] = lambda: "the condition was not met in time",
) -> None:
    """Until it is met; fails with what `else_say` then has to say."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, else_say()
        time.sleep(0.05)


async def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """As `wait_for`, while the event loop goes on; fails with a TimeoutError."""

    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.002)

    await asyncio.wait_for(poll(), timeout_s)


def is_running(process: psutil.Process) -> bool:
    """A zombie does not."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
