"""Connections have a number and a time; those who wait for nothing make room for those who ask."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
from collections.abc import AsyncGenerator

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.server.http import event_loop
from engine.server.http.connections import (
    ConnectionLimits,
    connection_of,
    exception_handler,
)
from tests.server.serving import http_server

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


class App:
    """Answers with the length of the body, once `may_answer` is set."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.num_asked = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.num_asked += 1
        with contextlib.suppress(Exception):
            body = await Request(scope, receive).body()
            await self.may_answer.wait()
            await Response(str(len(body)))(scope, receive, send)


@contextlib.asynccontextmanager
async def serving(limits: ConnectionLimits) -> AsyncGenerator[tuple[int, App], None]:
    app = App()
    async with http_server(app, limits) as listener:
        try:
            yield listener.getsockname()[1], app
        finally:
            app.may_answer.set()


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(port: int, data: bytes = b"") -> Connection:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    return reader, writer


async def status(connection: Connection) -> bytes:
    head = await connection[0].readuntil(b"\r\n\r\n")
    return head.split(b" ")[1]


async def test_idle_connections_make_room_for_new_ones() -> None:
    async with serving(ConnectionLimits(4)) as (port, _):
        idle = []
        for _ in range(12):
            idle.append(await connect(port))
            await asyncio.sleep(0)
        asking = await connect(port, GET)
        assert await status(asking) == b"200"
        assert await idle[0][0].read() == b""  # the oldest are gone
        for _, writer in [*idle, asking]:
            writer.close()


async def test_those_at_work_are_kept_and_the_next_is_told() -> None:
    async with serving(ConnectionLimits(3)) as (port, app):
        app.may_answer.clear()
        busy = [await connect(port, GET) for _ in range(3)]
        while app.num_asked < 3:
            await asyncio.sleep(0.001)
        refused = await connect(port, GET)
        assert b"too_many_connections" in await refused[0].read()
        app.may_answer.set()
        for connection in busy:
            assert await status(connection) == b"200"
        for _, writer in [*busy, refused]:
            writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nhost: x\r\n",
        GET + b"GET / HT",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nabc",
        GET + b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nabc",
    ],
)
async def test_who_does_not_finish_a_request_is_cut_off(sent: bytes) -> None:
    async with serving(ConnectionLimits(9, head_s=0.2, body_s=0.2)) as (port, _):
        reader, writer = await connect(port, sent)
        assert b"408" in await reader.read()
        writer.close()


async def test_a_request_that_has_arrived_has_no_deadline() -> None:
    async with serving(ConnectionLimits(9, head_s=0.02, body_s=0.02)) as (port, app):
        app.may_answer.clear()
        post = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc"
        connections = [await connect(port, data) for data in (GET, post)]
        cut_off = await connect(port)
        await cut_off[0].read()  # deadlines have passed
        app.may_answer.set()
        for connection in connections:
            assert await status(connection) == b"200"
        for _, writer in [*connections, cut_off]:
            writer.close()


async def test_failed_accepts_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    handle, loop = exception_handler(), asyncio.get_running_loop()
    for _ in range(1000):
        message = "socket.accept() out of system resource"
        handle(loop, {"message": message, "exception": OSError(24, "Too many open files")})
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    handle(loop, {"message": "something else"})
    assert caplog.records[-1].levelno == logging.ERROR


class Pushing:
    """Writes into the connection until the client is too slow for it."""

    def __init__(self) -> None:
        self.could_write: list[bool] = []
        self.written = b""
        self.is_full = asyncio.Event()

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        connection = connection_of(scope)
        assert connection is not None
        self.could_write.append(connection.can_write)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"<", "more_body": True})
        self.could_write.append(connection.can_write)
        while connection.can_write:
            self.written += b"0123456789" * 1000
            connection.write(self.written[-10_000:-1])
            connection.write(self.written[-1:])
            await asyncio.sleep(0)
        self.is_full.set()
        await send({"type": "http.response.body", "body": b">", "more_body": False})
        self.could_write.append(connection.can_write)


@pytest.mark.parametrize("has_uvloop", [False, True])
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_what_is_written_past_the_wrappers_waits_for_slow_clients(
    version: bytes, has_uvloop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_uvloop:
        pytest.importorskip("uvloop")
    else:
        monkeypatch.setitem(sys.modules, "uvloop", None)
    event_loop.run(_push_to_slow_client(version))


async def _push_to_slow_client(version: bytes) -> None:
    app = Pushing()
    async with http_server(app, ConnectionLimits(9)) as listener:
        get = b"GET / HTTP/" + version + b"\r\nhost: x\r\nconnection: close\r\n\r\n"
        reader, writer = await connect(listener.getsockname()[1], get)
        await app.is_full.wait()
        assert app.could_write == [False, True]  # before an answer begins, and then
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.read()
        assert (b"chunked" in head) == (version == b"1.1")
        if version == b"1.1":
            body = b"".join(body.split(b"\r\n")[1::2])
        assert body == b"<" + app.written + b">"
        assert app.could_write[2:] == [False]  # after its end
        writer.close()


RAISED = """
import resource
from engine.server.http.connections import raise_open_files_limit

resource.setrlimit(resource.RLIMIT_NOFILE, (256, min(HARD, 3000)))
limits = raise_open_files_limit()
assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(HARD, 3000)
assert 0 < limits.max_connections < min(HARD, 3000)
"""


def test_the_limit_on_open_files_is_raised_as_far_as_allowed() -> None:
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    code = RAISED.replace("HARD", str(hard if hard >= 0 else 1 << 20))
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
