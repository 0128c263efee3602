"""Several servers on one listening socket, and what one asks the others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from engine.server import serving
from engine.server.http.binding import bind_socket, bind_uds
from engine.server.peers import Peers
from engine.server.serving import serving_http


def named_app(name: str) -> FastAPI:
    app = FastAPI()

    @app.get("/name")
    async def say() -> Response:
        return JSONResponse(name)

    return app


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with bind_socket("127.0.0.1", 0) as found:
        yield found


async def test_servers_of_one_socket_share_what_comes_at_once(listener: socket.socket) -> None:
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/name"

    async def ask() -> str:
        async with httpx.AsyncClient(timeout=60) as http:
            return str((await http.get(url)).json())

    async with contextlib.AsyncExitStack() as stack:
        for name in "ab":
            shared = listener.dup()
            stack.callback(shared.close)
            await stack.enter_async_context(
                serving_http(named_app(name), [], access_log=False, shared=shared)
            )
        found = Counter(await asyncio.gather(*(ask() for _ in range(20))))
    assert sum(found.values()) == 20
    assert min(found["a"], found["b"]) > 0


class Fleet:
    """Two API servers of which each knows one request, and a third that is gone."""

    def __init__(self, folder: Path) -> None:
        self.sockets = [str(folder / name) for name in ("0", "1", "gone")]
        self.asked: list[str] = []

    def app(self, number: int) -> FastAPI:
        app = FastAPI()
        peers = Peers(tuple(path for at, path in enumerate(self.sockets) if at != number))

        @app.get("/requests/{name}")
        async def find(name: str, request: Request) -> Response:
            self.asked.append(f"{number}:{request.headers.get('authorization')}")
            if name == str(number):
                return JSONResponse({"found": number})
            return await peers.first_answer(request) or JSONResponse({}, 404)

        @app.get("/name/{name:path}")
        async def say(name: str, request: Request) -> Response:
            own = [number, name, request.headers["x-api-key"]]
            return JSONResponse([own, *await peers.documents(request)])

        @app.get("/load")
        async def load(request: Request) -> Response:
            others = await peers.documents(request)
            return JSONResponse({"load": 1 + sum(one["load"] for one in others)})

        return app


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # the path of a socket is short
        fleet = Fleet(Path(folder))
        async with contextlib.AsyncExitStack() as stack:
            for number in (0, 1):
                listener = bind_uds(fleet.sockets[number])
                await stack.enter_async_context(
                    serving_http(fleet.app(number), [listener], access_log=False)
                )
            yield fleet


async def ask(fleet: Fleet, number: int, path: str) -> httpx.Response:
    transport = httpx.AsyncHTTPTransport(uds=fleet.sockets[number])
    async with httpx.AsyncClient(transport=transport, timeout=60) as http:
        return await http.get(f"http://host{path}", headers={"authorization": "Bearer k"})


async def test_what_one_does_not_know_it_asks_the_others_once(fleet: Fleet) -> None:
    assert (await ask(fleet, 0, "/requests/1")).json() == {"found": 1}
    assert fleet.asked == ["0:Bearer k", "1:Bearer k"]
    fleet.asked.clear()
    assert (await ask(fleet, 1, "/requests/none")).status_code == 404
    assert fleet.asked == ["1:Bearer k", "0:Bearer k"], "who is asked asks nobody"


async def test_sums_are_of_those_that_are_there(fleet: Fleet) -> None:
    assert (await ask(fleet, 0, "/load")).json() == {"load": 2}


async def test_odd_paths_and_keys_are_passed_on_as_they_came(fleet: Fleet) -> None:
    target = Path(fleet.sockets[0])
    reader, writer = await asyncio.open_unix_connection(target)
    writer.write(
        b"GET /name/a%01b%2Fc%FF HTTP/1.1\r\nHost: h\r\nX-Api-Key: caf\xe9\r\n"
        b"Connection: close\r\n\r\n"
    )
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    await writer.wait_closed()
    body = answer.partition(b"\r\n\r\n")[2]
    name = "a\x01b/c\ufffd"
    assert json.loads(body) == [[0, name, "caf\xe9"], [[1, name, "caf\xe9"]]]


async def test_a_connection_that_cannot_be_served_does_not_end_the_taking(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    serve, failures = loop.connect_accepted_socket, [OSError("no room left"), None]

    async def connect(*arguments: Any) -> Any:
        failure = failures.pop(0)
        if failure is not None:
            raise failure
        return await serve(*arguments)

    told: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: told.append(context))
    monkeypatch.setattr(loop, "connect_accepted_socket", connect)
    monkeypatch.setattr(serving, "_AFTER_FAILURE_S", 0.0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/name"
    async with (
        serving_http(named_app("a"), [], access_log=False, shared=listener),
        httpx.AsyncClient(timeout=60) as http,
    ):
        with pytest.raises(httpx.TransportError):
            await http.get(url)
        assert (await http.get(url)).json() == "a"
    assert [str(context["exception"]) for context in told] == ["no room left"]
    listener.close()
