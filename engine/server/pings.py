"""Events that say nothing but that the server is there, while an answer's first one is waited for.

A long prompt or a full queue keeps a stream silent for longer than clients and proxies are patient.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from engine.errors import EngineError
from engine.server.errors import to_api_error
from engine.server.streaming import AnswerFormat

PING_EVERY_S = 10.0


async def with_pings(
    events: AsyncGenerator[bytes, None],
    answer: AnswerFormat,
    ping: bytes,
) -> AsyncGenerator[bytes, None]:
    """The events, and before the first one `ping` each time that PING_EVERY_S has passed.

    Once a ping is out the status is, too: what then refuses the request is its last event. Before
    that it is raised.
    """
    async with aclosing(events):
        first = asyncio.ensure_future(_next(events))
        try:
            is_silent = True
            while not (await asyncio.wait({first}, timeout=PING_EVERY_S))[0]:
                is_silent = False
                yield ping
            try:
                event = first.result()
            except EngineError as error:
                if is_silent:
                    raise
                yield answer.failure(to_api_error(error))
                return
        finally:
            first.cancel()
            await asyncio.wait({first})
        if event is None:
            return
        yield event
        async for event in events:
            yield event


async def _next(events: AsyncGenerator[bytes, None]) -> bytes | None:
    """None at the end, which a task cannot raise."""
    return await anext(events, None)
