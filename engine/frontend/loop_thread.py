"""An event loop in a thread of its own: plain code and notebooks can wait for its coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

# What is being cancelled (an engine that still starts, say) may take this long to clean up.
_LAST_TASKS_S = 10.0


class LoopThread:
    """Runs coroutines for threads that may have a running loop already (as notebooks do)."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for `work`; an interrupted wait (Ctrl-C) cancels it."""
        task: asyncio.Task[Any] | None = None
        is_given_up = False

        async def followed() -> T:
            nonlocal task
            task = asyncio.current_task()
            if is_given_up:
                work.close()
                raise asyncio.CancelledError
            return await work

        def give_up() -> None:
            nonlocal is_given_up
            is_given_up = True
            if task is not None:
                task.cancel()

        # Ctrl-C may come at any step, also between the hand-over and the wait: whatever has begun
        # by then is cancelled in the loop's own thread.
        try:
            return asyncio.run_coroutine_threadsafe(followed(), self._loop).result()
        except BaseException:
            self._loop.call_soon_threadsafe(give_up)
            raise

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Run `last`, then end loop and thread; does not wait when it is called in the loop's own
        thread (by a garbage collection there).
        """
        future = asyncio.run_coroutine_threadsafe(self._finish(last), self._loop)
        if threading.current_thread() is self._thread:
            return
        try:
            future.result()
        finally:
            self._thread.join()
            self._loop.close()

    async def _finish(self, last: Coroutine[Any, Any, None]) -> None:
        try:
            await last
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if others:
                await asyncio.wait(others, timeout=_LAST_TASKS_S)
        finally:
            asyncio.get_running_loop().call_soon(self._loop.stop)
