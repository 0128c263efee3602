from __future__ import annotations

import asyncio

import pytest

from engine.core.together import all_together


async def test_results_come_in_the_order_of_the_work() -> None:
    first_may_end = asyncio.Event()

    async def first() -> str:
        await first_may_end.wait()
        return "first"

    async def second() -> str:
        first_may_end.set()
        return "second"

    assert await all_together([first(), second()]) == ["first", "second"]


async def test_the_first_failure_is_raised_when_all_others_are_over() -> None:
    has_begun, has_ended = asyncio.Event(), False

    async def endless() -> None:
        nonlocal has_ended
        try:
            has_begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            has_ended = True

    async def failing() -> None:
        await has_begun.wait()
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await all_together([endless(), failing()])
    assert has_ended
