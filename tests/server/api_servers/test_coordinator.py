"""The DPCoordinator over its real sockets, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest
import zmq
import zmq.asyncio

from engine.core.handshake import SharedAddresses
from engine.frontend.iteration_stats import IterationStats
from engine.messages import ClientReport, EngineStats, QueueStats, SchedulerStats
from engine.server.api_servers.control import ClientDown, Control, EngineDown
from engine.server.api_servers.coordinator import Coordinator

TIMEOUT_S = 60
AWAKE = [0, 0]  # the sleep level of each engine


class Sink:
    def __init__(self) -> None:
        self.running: dict[int, int] = {}
        self.num_tokens = 0

    def record(
        self, scheduler: SchedulerStats | None, iteration: IterationStats, engine: int = 0
    ) -> None:
        assert scheduler is not None
        self.running[engine] = scheduler.num_running_reqs
        self.num_tokens += iteration.num_generation_tokens


class World:
    """The engines, the API servers and the parent of one coordinator."""

    def __init__(self, context: zmq.asyncio.Context, addresses: SharedAddresses) -> None:
        self._context = context
        self._addresses = addresses
        self._encode = msgspec.msgpack.Encoder().encode
        self._subscribers: list[zmq.asyncio.Socket] = []
        self.sink = Sink()
        self.parent = Control(context, addresses.control(0, 1), binds=True)
        self.stats = context.socket(zmq.PUSH)
        self.stats.connect(addresses.stats)
        self.reports = context.socket(zmq.PUSH)
        self.reports.connect(addresses.reports)

    def subscribe(self) -> Callable[[], Awaitable[QueueStats]]:
        socket = self._context.socket(zmq.SUB)
        socket.connect(self._addresses.queues)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._subscribers.append(socket)

        async def read() -> QueueStats:
            message = await asyncio.wait_for(socket.recv(), TIMEOUT_S)
            return msgspec.msgpack.decode(message, type=QueueStats)

        return read

    async def step(self, engine: int, running: int, waiting: int = 0) -> None:
        state = SchedulerStats(num_running_reqs=running, num_waiting_reqs=waiting)
        await self.stats.send(self._encode(EngineStats(engine, state, 4, 0, 1)))

    async def report(self, client: int, *num_requests: int) -> None:
        await self.reports.send(self._encode(ClientReport(client, list(num_requests))))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    context, addresses = zmq.asyncio.Context(), SharedAddresses.create()
    world = World(context, addresses)
    coordinator = Coordinator(context, addresses, 2, [world.sink])
    child = Control(context, addresses.control(0, 1), binds=False)
    tasks = [asyncio.create_task(coordinator.run()), asyncio.create_task(coordinator.follow(child))]
    yield world
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    context.destroy(linger=0)
    addresses.remove()


async def until(read: Callable[[], Awaitable[QueueStats]], wanted: QueueStats) -> None:
    """Publications may come for each part of the news."""
    found = await read()
    while found != wanted:
        found = await read()


async def test_all_api_servers_learn_every_engines_queues(world: World) -> None:
    readers = [world.subscribe(), world.subscribe()]
    await world.step(0, running=2, waiting=3)
    await world.step(1, running=1)
    await world.report(1, 5, 0)
    await world.report(2, 0, 1)
    for read in readers:
        await until(
            read, QueueStats([3, 0], [2, 1], {1: [5, 0], 2: [0, 1]}, [], {1: 0, 2: 0}, AWAKE)
        )
    assert world.sink.running == {0: 2, 1: 1}
    assert world.sink.num_tokens == 0, "tokens are counted by the API servers"


async def test_one_that_comes_later_is_told_at_once(world: World) -> None:
    first = world.subscribe()
    await world.step(1, running=4)
    await until(first, QueueStats([0, 0], [0, 4], {}, [], {}, AWAKE))
    await until(world.subscribe(), QueueStats([0, 0], [0, 4], {}, [], {}, AWAKE))


async def test_the_dead_count_for_nothing(world: World) -> None:
    read = world.subscribe()
    await world.step(0, running=2)
    await world.report(1, 2, 1)
    await world.report(2, 1, 0)
    await until(read, QueueStats([0, 0], [2, 0], {1: [2, 1], 2: [1, 0]}, [], {1: 0, 2: 0}, AWAKE))
    await world.parent.send(EngineDown(0))
    await until(read, QueueStats([0, 0], [0, 0], {1: [0, 1], 2: [0, 0]}, [], {1: 0, 2: 0}, AWAKE))
    assert world.sink.running[0] == 0
    await world.parent.send(ClientDown(1))
    await until(read, QueueStats([0, 0], [0, 0], {2: [0, 0]}, [], {2: 0}, AWAKE))
