from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from engine.frontend.loop_thread import LoopThread


async def _nothing() -> None:
    """The last thing that a loop runs."""


def test_work_is_run_and_its_errors_come_back() -> None:
    loop = LoopThread("test")

    async def fails() -> None:
        raise ValueError("no")

    assert loop.run(asyncio.sleep(0, "done")) == "done"
    with pytest.raises(ValueError, match="no"):
        loop.run(fails())
    loop.close(_nothing())


def test_an_interrupt_between_the_hand_over_and_the_wait_cancels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody has the future yet, and the work runs already."""
    loop = LoopThread("test")
    has_begun, was_cancelled = threading.Event(), threading.Event()

    async def work() -> None:
        has_begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            was_cancelled.set()
            raise

    real = asyncio.run_coroutine_threadsafe

    def interrupted(coroutine: Any, into: asyncio.AbstractEventLoop) -> Future[Any]:
        real(coroutine, into)
        assert has_begun.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loop.run(work())
    assert was_cancelled.wait(60)
    monkeypatch.undo()
    loop.close(_nothing())
