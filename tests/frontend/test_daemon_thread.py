from __future__ import annotations

import asyncio
import threading
import time

import pytest

from engine.frontend.daemon_thread import DaemonThreads


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
