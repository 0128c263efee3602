"""One of several API servers: the whole front end, with engines that its parent starts.

All of them take connections from one listening socket, so that whichever has time takes the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

import zmq.asyncio

from engine.args import EngineArgs
from engine.config import EngineConfig
from engine.core.handshake import SharedAddresses
from engine.core.shared_client import SharedClient
from engine.errors import EngineDeadError, EngineError
from engine.frontend.async_llm import start_loaded
from engine.frontend.engine_start import load_frontend
from engine.frontend.iteration_stats import IterationStats, StatSink
from engine.logger import get_logger, setup_logging
from engine.machine.children import end_with_parent
from engine.messages import HandshakeReady, QueueStats, SchedulerStats
from engine.server.admission import Admission
from engine.server.api import app_of
from engine.server.api_servers.control import (
    Control,
    CoordinatorDown,
    EngineDown,
    EnginesDead,
    EngineUp,
    Failed,
    Go,
    Hello,
    Loaded,
    Serving,
    Setup,
    Worked,
)
from engine.server.http import event_loop
from engine.server.http.binding import bind_uds
from engine.server.http.connections import exception_handler
from engine.server.http.http_log import http_event, setup_http_logging
from engine.server.http.stop_signals import StopEvents
from engine.server.metrics import EngineMetrics, create_registry
from engine.server.peers import Peers
from engine.server.serving import run_until_end, serving_http
from engine.server.startup import RunningEngine, running_engine
from engine.server.state import ApiState

logger = get_logger(__name__)


def main(name: str, control_address: str, parent: int, listener: int) -> int:
    """Serve on the inherited descriptor `listener` until told to stop; returns the exit code."""
    setup_logging(name)
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent decides
    return event_loop.run(_run(name, control_address, socket.socket(fileno=listener)))


async def _run(name: str, control_address: str, listener: socket.socket) -> int:
    stop = StopEvents()
    stop.install((signal.SIGTERM,))
    asyncio.get_running_loop().set_exception_handler(exception_handler())
    context = zmq.asyncio.Context(io_threads=1)
    control = Control(context, control_address, binds=False)
    try:
        await control.send(Hello(os.getpid()))
        setup = await control.expect(Setup)
        assert setup.args is not None, "only the coordinator has none"
        secrets = (setup.args.api_key or "",)
        setup_logging(name, secrets=secrets)
        setup_http_logging(name, secrets=secrets)
        return await _ApiServer(setup, setup.args, control, listener).run(stop)
    except EngineError as error:
        await control.send(Failed(type(error).__name__, str(error)))
        return 1
    finally:
        context.destroy(linger=1000)


class _ApiServer:
    def __init__(
        self, setup: Setup, args: EngineArgs, control: Control, listener: socket.socket
    ) -> None:
        self._setup = setup
        self._args = args
        self._control = control
        self._listener = listener
        self._addresses = SharedAddresses(Path(setup.folder))
        self._state = ApiState(create_registry())
        self._admission = Admission()
        self._client = SharedClient(
            setup.config, self._addresses, setup.server, self._wait_for_go, self._note_queues
        )

    async def run(self, stop: StopEvents) -> int:
        """Everything from reading the model's files to the last answer."""
        engine = await stop.unless_requested(self._start())
        if engine is None:
            return 0
        follow = asyncio.create_task(self._follow())
        self._state.become_ready(engine.services)
        own = self._addresses.http(self._setup.server)
        app = app_of(self._state, self._args)
        http = serving_http(
            app,
            [bind_uds(own)],
            access_log=not self._args.disable_uvicorn_access_log,
            shared=self._listener,
        )
        try:
            async with http:
                await self._control.send(Serving())
                http_event(f"Started server process [{os.getpid()}]")
                return await run_until_end(engine, self._state, stop, self._args.shutdown_timeout)
        finally:
            follow.cancel()
            with contextlib.suppress(OSError):
                os.unlink(own)

    async def _start(self) -> RunningEngine:
        setup, args = self._setup, self._args
        loaded = await load_frontend(setup.config, args)
        started = await start_loaded(
            loaded, args, lambda _: self._client, self._sinks, setup.traffic_key
        )
        others = (number for number in range(setup.num_servers) if number != setup.server)
        peers = Peers(tuple(self._addresses.http(number) for number in others))
        return running_engine(
            setup.model, args, started, self._admission, created=setup.created, peers=peers
        )

    def _sinks(self, config: EngineConfig, readies: Sequence[HandshakeReady]) -> Sequence[StatSink]:
        """The engines' states and the throughput lines are the coordinator's."""
        first = _FirstStep(self._control)
        if not config.observability.log_stats:
            return [first]
        name = config.model.served_name
        return [first, EngineMetrics(self._state.registry, name, config.cache, readies)]

    def _note_queues(self, stats: QueueStats) -> None:
        """Limits on what waits are those of the whole server."""
        levels = stats.sleep_levels or [0] * len(stats.num_running)  # as when nobody tells them
        queues = zip(stats.num_running, stats.num_waiting, levels, strict=True)
        for rank, (running, waiting, level) in enumerate(queues):
            state = SchedulerStats(running, waiting, sleep_level=level)
            self._admission.record(state, IterationStats(), rank)
        self._admission.note_elsewhere(
            sum(sum(numbers) for numbers in stats.num_requests.values()),
            sum(stats.num_queued_tokens.values()),
        )

    async def _wait_for_go(self) -> tuple[Sequence[HandshakeReady], Sequence[bool]]:
        await self._control.send(Loaded())
        go = await self._control.expect(Go)
        return go.readies, go.are_up

    async def _follow(self) -> None:
        """Take the parent's news of the engines."""
        while True:
            message = await self._control.receive()
            if isinstance(message, EngineDown):
                self._client.note_down(message.rank)
            elif isinstance(message, EngineUp):
                self._client.note_up(message.rank)
            elif isinstance(message, CoordinatorDown):
                self._client.note_no_coordinator()
            elif isinstance(message, EnginesDead):
                self._client.note_dead(EngineDeadError(message.message))


class _FirstStep:
    """Tells the parent of the first step that brings something for this API server (a StatSink)."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._telling: asyncio.Task[None] | None = None

    def record(
        self, _scheduler: SchedulerStats | None, _iteration: IterationStats, _engine: int = 0
    ) -> None:
        if self._telling is None:
            self._telling = asyncio.create_task(self._control.send(Worked()))
