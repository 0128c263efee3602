from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from engine.server.http.client_watch import ClientGone, unless_client_goes
from tests.server.serving import http_server

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


class Working:
    """Answers when its work may end; `ends` tells how each work ended."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.has_begun = asyncio.Semaphore(0)
        self.ends: asyncio.Queue[str] = asyncio.Queue()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_client_goes(Request(scope, receive), self._work())
        except ClientGone:
            await self.ends.put("gone")
            return
        except ZeroDivisionError:
            await self.ends.put("failed")
        await Response("done")(scope, receive, send)

    async def _work(self) -> None:
        self.has_begun.release()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            await self.ends.put("cancelled")
            raise
        await self.ends.put("ended")


@pytest.fixture
async def working() -> AsyncGenerator[tuple[Working, int], None]:
    app = Working()
    async with http_server(app) as listener:
        yield app, listener.getsockname()[1]
        app.may_end.set()


async def test_work_is_cancelled_when_its_client_goes(working: tuple[Working, int]) -> None:
    app, port = working
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GET)
    await app.has_begun.acquire()
    writer.close()
    assert [await app.ends.get() for _ in range(2)] == ["cancelled", "gone"]


@pytest.mark.parametrize("is_pipelined", [False, True])
async def test_each_request_of_a_connection_is_watched(
    is_pipelined: bool, working: tuple[Working, int]
) -> None:
    app, port = working
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GET * 2 if is_pipelined else GET)
    await app.has_begun.acquire()
    app.may_end.set()
    assert await app.ends.get() == "ended"
    app.may_end.clear()
    assert (await reader.readuntil(b"done")).startswith(b"HTTP/1.1 200")
    if not is_pipelined:
        writer.write(GET)
    await app.has_begun.acquire()
    writer.close()
    assert [await app.ends.get() for _ in range(2)] == ["cancelled", "gone"]


async def test_errors_of_work_are_its_callers(working: tuple[Working, int]) -> None:
    app, port = working

    async def failing() -> None:
        raise ZeroDivisionError

    app._work = failing  # type: ignore[method-assign]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GET)
    assert await app.ends.get() == "failed"
    await reader.readuntil(b"done")
    writer.close()


async def test_without_our_connection_messages_tell_that_a_client_went() -> None:
    is_gone = asyncio.Event()

    async def receive() -> Message:
        await is_gone.wait()
        return {"type": "http.disconnect"}

    async def send(_message: Message) -> None:
        raise AssertionError("nobody is there")

    app = Working()
    call = asyncio.create_task(app({"type": "http"}, receive, send))
    await app.has_begun.acquire()
    is_gone.set()
    assert [await app.ends.get() for _ in range(2)] == ["cancelled", "gone"]
    await call
