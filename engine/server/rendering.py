"""Rendering: chat templates run beside the event loop, a few at a time, and not for ever.

A template is the model's own program over what a client sends: it may take long, or never end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from engine.errors import RequestError
from engine.frontend.daemon_thread import DaemonThreads

T = TypeVar("T")

LIMIT_S = 10.0
_AT_A_TIME = 4


class Rendering:
    """Runs the templates of one server."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._threads = DaemonThreads()
        self._seats = asyncio.Semaphore(_AT_A_TIME)

    async def run(self, render: Callable[[], T]) -> T:
        """What `render` returns; RequestError when it takes longer than the limit."""
        async with self._seats:
            try:
                return await self._threads.run(render, limit_s=self._limit_s)
            except asyncio.TimeoutError as error:
                raise RequestError(
                    f"The model's chat template was not done with these messages after "
                    f"{self._limit_s:g} s; send fewer of them, or shorter ones.",
                    param="messages",
                ) from error
