"""Several servers on one listening socket, and what one asks the others."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

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
