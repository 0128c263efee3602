from __future__ import annotations

import asyncio
import gc
import threading
import time

import pytest

from engine.frontend.daemon_thread import DaemonThreads, in_daemon_thread
from tests.waiting import until, wait_for


def _forever() -> None:
    while True:
        time.sleep(0.001)


async def test_a_thread_is_kept_for_the_next_work() -> None:
    threads = DaemonThreads()
    first = await threads.run(threading.current_thread)
    assert await threads.run(threading.current_thread) is first
    together = await asyncio.gather(*(threads.run(threading.current_thread) for _ in range(2)))
    assert len(set(together)) == 2
    del threads
    for thread in together:
        await asyncio.to_thread(thread.join)


async def test_one_that_had_to_be_stopped_is_not() -> None:
    threads = DaemonThreads()
    first = await threads.run(threading.current_thread)
    with pytest.raises(asyncio.TimeoutError):
        await threads.run(_forever, limit_s=0.01)
    assert await threads.run(threading.current_thread) is not first
    await asyncio.to_thread(first.join)


async def test_one_that_is_not_kept_ends_with_work_that_fails() -> None:
    began: list[threading.Thread] = []

    def fails() -> None:
        began.append(threading.current_thread())
        raise KeyError("x")

    gc.disable()  # what failed is held by its own traceback, and must not hold the thread
    try:
        with pytest.raises(KeyError):
            await in_daemon_thread(fails)
        began[0].join(60)
        assert not began[0].is_alive()
    finally:
        gc.enable()


def test_work_that_outlives_its_loop_leaves_no_thread() -> None:
    began: list[threading.Thread] = []
    may_end = threading.Event()

    def works() -> None:
        began.append(threading.current_thread())
        assert may_end.wait(60)

    async def leave() -> None:
        task = asyncio.create_task(DaemonThreads().run(works))
        await until(lambda: bool(began))
        task.cancel()

    asyncio.run(leave())
    may_end.set()

    def has_ended() -> bool:
        gc.collect()  # what was cancelled is held by its own traceback
        return not began[0].is_alive()

    wait_for(has_ended)
