"""The DPCoordinator: tells all API servers how long every engine's queues are.

Gets each step's statistics from the engines, and from the API servers what they have sent where.
Counts the engines' states for /metrics and writes the throughput lines, since it alone sees all.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from engine.core.handshake import SharedAddresses
from engine.core.queue_stats import QueueCounts
from engine.core.sockets import bound
from engine.core.together import all_together
from engine.frontend.iteration_stats import IterationStats, StatSink
from engine.logger import setup_logging
from engine.machine.children import end_with_parent
from engine.messages import ClientReport, EngineStats, SchedulerStats
from engine.server.api_servers.control import (
    ClientDown,
    Control,
    EngineDown,
    Go,
    Hello,
    Loaded,
    Serving,
    Setup,
    Worked,
)
from engine.server.http.stop_signals import StopEvents
from engine.server.metrics import create_registry
from engine.server.startup import create_sinks, stats_interval
from engine.server.stat_logger import StatLogger

_PUBLISH_S = 0.1
"""Least time between two publications, as in vLLM's v1/engine/coordinator.py."""


def main(name: str, control_address: str, parent: int) -> int:
    """Run until told to stop; returns the process's exit code."""
    setup_logging(name)
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent decides
    return asyncio.run(_run(control_address))


async def _run(control_address: str) -> int:
    stop = StopEvents()
    stop.install((signal.SIGTERM,))
    context = zmq.asyncio.Context(io_threads=1)
    control = Control(context, control_address, binds=False)
    try:
        await control.send(Hello(os.getpid()))
        setup = await control.expect(Setup)
        await control.send(Loaded())
        go = await control.expect(Go)
        sinks = create_sinks(setup.config, create_registry(), go.readies)
        addresses = SharedAddresses(Path(setup.folder))
        coordinator = Coordinator(context, addresses, len(go.readies), sinks)
        await control.send(Serving())
        work = [coordinator.run(), coordinator.follow(control), coordinator.tell_work(control)]
        await stop.unless_requested(all_together([*work, _log_stats(sinks)]))
        return 0
    finally:
        context.destroy(linger=0)


async def _log_stats(sinks: list[StatSink]) -> None:
    for sink in sinks:
        if isinstance(sink, StatLogger):
            await sink.run(stats_interval())


class Coordinator:
    """Its sockets, and what is done with what arrives there."""

    def __init__(
        self,
        context: zmq.asyncio.Context,
        addresses: SharedAddresses,
        num_engines: int,
        sinks: list[StatSink],
    ) -> None:
        self._counts = QueueCounts(num_engines)
        self._loggers = [sink for sink in sinks if isinstance(sink, StatLogger)]
        self._states = [sink for sink in sinks if not isinstance(sink, StatLogger)]
        self._stats = bound(context, zmq.PULL, addresses.stats)
        self._reports = bound(context, zmq.PULL, addresses.reports)
        self._queues = bound(context, zmq.XPUB, addresses.queues)
        self._queues.setsockopt(zmq.XPUB_VERBOSE, 1)  # each subscriber, not the first alone
        self._has_worked = asyncio.Event()
        self._news = asyncio.Event()
        self._news.set()

    async def run(self) -> None:
        """Take what comes and publish it, until cancelled."""
        work = (self._take_stats(), self._take_reports(), self._take_subscribers(), self._publish())
        await all_together(work)

    async def follow(self, control: Control) -> None:
        """Take the parent's news of engines and API servers."""
        while True:
            message = await control.receive()
            if isinstance(message, EngineDown):
                self._counts.note_down(message.rank)
                self._record(EngineStats(message.rank, SchedulerStats()))
            elif isinstance(message, ClientDown):
                self._counts.note_client_down(message.client_index)
            self._note_news()

    async def tell_work(self, control: Control) -> None:
        """Tell the parent of the first step of an engine."""
        await self._has_worked.wait()
        await control.send(Worked())

    async def _take_stats(self) -> None:
        decode = msgspec.msgpack.Decoder(EngineStats).decode
        while True:
            stats = decode(await self._stats.recv())
            self._counts.note_engine(stats)
            self._has_worked.set()
            self._record(stats)
            self._note_news()

    async def _take_reports(self) -> None:
        decode = msgspec.msgpack.Decoder(ClientReport).decode
        while True:
            self._counts.note_client(decode(await self._reports.recv()))
            self._note_news()

    async def _take_subscribers(self) -> None:
        """An API server that has just come knows nothing of the others."""
        while True:
            await self._queues.recv()
            self._counts.has_changed = True
            self._note_news()

    async def _publish(self) -> None:
        encode = msgspec.msgpack.Encoder().encode
        while True:
            await self._news.wait()
            self._news.clear()
            await self._queues.send(encode(self._counts.publication()))
            await asyncio.sleep(_PUBLISH_S)

    def _note_news(self) -> None:
        if self._counts.has_changed:
            self._news.set()

    def _record(self, stats: EngineStats) -> None:
        tokens = IterationStats(
            num_prompt_tokens=stats.num_prompt_tokens,
            num_cached_tokens=stats.num_cached_tokens,
            num_generation_tokens=stats.num_generation_tokens,
        )
        for line in self._loggers:
            line.record(stats.scheduler, tokens, stats.engine_index)
        for state in self._states:  # the tokens are in the API servers' metrics
            state.record(stats.scheduler, IterationStats(), stats.engine_index)
