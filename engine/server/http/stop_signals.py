"""SIGINT and SIGTERM as events: the first asks for an orderly stop, the second forces it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from engine.core.together import wait_any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_T = TypeVar("_T")


class StopEvents:
    """Two events that the handlers set; nothing happens inside a handler."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.forced = asyncio.Event()

    def install(self, numbers: Sequence[signal.Signals] = _SIGNALS) -> None:
        """Take the signals over for the running event loop."""
        loop = asyncio.get_running_loop()
        for number in numbers:
            loop.add_signal_handler(number, self._on_signal)

    async def unless_requested(self, work: Coroutine[Any, Any, _T]) -> _T | None:
        """Its result; None when a stop was asked for first, which cancels it."""
        task = asyncio.create_task(work)
        await wait_any(task, self.requested.wait())
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return None

    def _on_signal(self) -> None:
        if self.requested.is_set():
            self.forced.set()
        self.requested.set()
