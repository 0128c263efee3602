"""Runs blocking Python beside the event loop; it can be stopped, and nobody waits for its end."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import queue
import threading
import weakref
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class _Stop(BaseException):
    """Raised inside the thread; no `except Exception` on its way catches it."""


class DaemonThreads:
    """Threads that are kept for the next work: to start one takes as long as a short template.

    They end when this object is forgotten.
    """

    def __init__(self) -> None:
        self._idle: list[_DaemonThread] = []

    async def run(self, work: Callable[[], T], *, limit_s: float | None = None) -> T:
        """Like asyncio.to_thread, but a stop of the program need not wait for `work`.

        After `limit_s`, or when the caller is cancelled, `work` is ended at its next line of Python
        and TimeoutError is raised. Without a limit it runs to its end whatever happens.
        """
        thread = self._idle.pop() if self._idle else _DaemonThread()
        return await _run_in(thread, work, limit_s, keep=self._idle.append)


async def in_daemon_thread(work: Callable[[], T], *, limit_s: float | None = None) -> T:
    """As DaemonThreads.run, in a thread that ends with `work`, also when that fails."""
    return await _run_in(_DaemonThread(), work, limit_s, keep=None)


async def _run_in(
    thread: _DaemonThread,
    work: Callable[[], T],
    limit_s: float | None,
    keep: Callable[[_DaemonThread], None] | None,
) -> T:
    """`keep` gets the thread once it is free; without it the thread ends after `work`."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(result: T | None, error: BaseException | None) -> None:
        if keep is not None and not thread.is_ended:
            keep(thread)
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def body() -> None:
        result, failure = None, None
        try:
            result = work()
        except _Stop:
            return
        except BaseException as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(deliver, result, failure)

    thread.begin(body)
    if keep is None:
        thread.end()
    if limit_s is None:
        return await future
    try:
        return await asyncio.wait_for(future, limit_s)
    finally:
        if not future.done() or future.cancelled():
            thread.stop()


class _DaemonThread:
    """Does one thing after the other until it is ended."""

    def __init__(self) -> None:
        self.is_ended = False
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        target = functools.partial(_work_off, self._work)
        self._thread = threading.Thread(target=target, daemon=True, name="beside-the-loop")
        self._thread.start()
        # Also when its loop was closed before it could be kept, and when nobody keeps it any more.
        weakref.finalize(self, self._work.put, None)

    def begin(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def end(self) -> None:
        """After what it does now; nothing may be begun any more."""
        self.is_ended = True
        self._work.put(None)

    def stop(self) -> None:
        """The same, and what it does now ends at its next line of Python."""
        self.end()
        if self._thread.ident is not None and self._thread.is_alive():
            ident = ctypes.c_ulong(self._thread.ident)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(_Stop))


def _work_off(work: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    with contextlib.suppress(_Stop):
        while (next_work := work.get()) is not None:
            next_work()
            del next_work  # with all that it holds
