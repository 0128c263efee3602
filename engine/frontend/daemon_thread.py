"""Runs blocking Python beside the event loop; it can be stopped, and nobody waits for its end."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class _Stop(BaseException):
    """Raised inside the thread; no `except Exception` on its way catches it."""


async def in_daemon_thread(work: Callable[[], T], *, limit_s: float | None = None) -> T:
    """Like asyncio.to_thread, but a stop of the program need not wait for `work`.

    After `limit_s`, or when the caller is cancelled, `work` is ended at its next line of Python and
    TimeoutError is raised. Without a limit it runs to its end whatever happens.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(result: T | None, error: BaseException | None) -> None:
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

    thread = threading.Thread(target=body, daemon=True, name="beside-the-loop")
    thread.start()
    if limit_s is None:
        return await future
    try:
        return await asyncio.wait_for(future, limit_s)
    finally:
        if not future.done() or future.cancelled():
            _stop(thread)


def _stop(thread: threading.Thread) -> None:
    if thread.ident is not None and thread.is_alive():
        ident, raised = ctypes.c_ulong(thread.ident), ctypes.py_object(_Stop)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, raised)
