"""One of several API servers in this process: what it and its parent say to each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import zmq.asyncio

from engine.args import EngineArgs
from engine.core.handshake import SharedAddresses
from engine.messages import QueueStats
from engine.server.api_servers.api_server import _ApiServer
from engine.server.api_servers.control import Control, CoordinatorDown, Go, Loaded, Serving, Setup
from engine.server.http.binding import bind_socket
from engine.server.http.stop_signals import StopEvents
from tests.core.conftest import engine_config
from tests.server.fake_core import READY

TIMEOUT_S = 60


@asynccontextmanager
async def loaded(folder: Path) -> AsyncIterator[tuple[_ApiServer, Control]]:
    """A server with two engines that waits for the word to serve, and its parent's end."""
    context, addresses = zmq.asyncio.Context(), SharedAddresses.create()
    parent = Control(context, addresses.control(0, 1), binds=True)
    child = Control(context, addresses.control(0, 1), binds=False)
    args = EngineArgs(data_parallel_size=2, api_server_count=2)
    config = engine_config(folder, data_parallel_size=2)
    setup = Setup(str(folder), config, str(addresses.folder), 2, args=args)
    listener, stop = bind_socket("127.0.0.1", 0), StopEvents()
    server = _ApiServer(setup, args, child, listener)
    running = asyncio.create_task(server.run(stop))
    try:
        await asyncio.wait_for(parent.expect(Loaded), TIMEOUT_S)
        yield server, parent
    finally:
        stop.requested.set()
        code = await asyncio.wait_for(running, TIMEOUT_S)
        listener.close()
        context.destroy(linger=0)
        addresses.remove()
    assert code == 0


async def no_load(server: _ApiServer) -> None:
    while server._client._router.load(1):
        await asyncio.sleep(0.01)


async def test_it_serves_first_of_all_while_an_engine_is_down(tiny_folder: Path) -> None:
    async with loaded(tiny_folder) as (_, parent):
        await parent.send(Go((READY, READY), (False, True)))
        await asyncio.wait_for(parent.expect(Serving), TIMEOUT_S)


async def test_without_a_coordinator_the_others_count_for_nothing(tiny_folder: Path) -> None:
    async with loaded(tiny_folder) as (server, parent):
        await parent.send(Go((READY, READY), (True, True)))
        await asyncio.wait_for(parent.expect(Serving), TIMEOUT_S)
        server._client._learn(QueueStats([0, 3], [0, 4], {9: [0, 7]}, [], {9: 500}))
        assert server._client._router.load(1) == 4 * 3 + 4
        assert (server._admission.num_queued, server._admission.num_queued_tokens) == (3, 500)
        await parent.send(CoordinatorDown())
        await asyncio.wait_for(no_load(server), TIMEOUT_S)
        assert (server._admission.num_queued, server._admission.num_queued_tokens) == (0, 0)
