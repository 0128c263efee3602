"""The process of `serve` where there are several API servers: it takes the port, starts everything
and watches it.

It answers 503 while the engines load. Then the API servers take over its socket, and it only
starts again what dies: an engine (engine/core/replicas.py), an API server, the DPCoordinator.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import zmq
import zmq.asyncio

from engine.args import EngineArgs
from engine.config import EngineConfig
from engine.core.core_process import ChildProcess, CoreProcess
from engine.core.handshake import SharedAddresses
from engine.core.output_share import ABORT_CLIENT
from engine.core.replicas import create_client
from engine.core.together import all_together, wait_any
from engine.env import COUNTS_VARIABLE
from engine.errors import ConfigError, EngineDeadError, EngineError
from engine.frontend.async_llm import EngineCoreClient
from engine.frontend.engine_start import load_config
from engine.frontend.traffic_recorder import KEY_BYTES
from engine.logger import get_logger
from engine.machine.children import engine_command
from engine.messages import TELL_SLEEP, HandshakeReady
from engine.server.announcements import announce_ready, announce_routes, log_invocation
from engine.server.api import app_of
from engine.server.api_servers.control import (
    ClientDown,
    Control,
    CoordinatorDown,
    EngineDown,
    EnginesDead,
    EngineUp,
    Go,
    Hello,
    Loaded,
    Message,
    Serving,
    Setup,
    Worked,
)
from engine.server.http.binding import socket_url
from engine.server.http.connections import exception_handler
from engine.server.http.http_log import http_event
from engine.server.http.stop_signals import StopEvents
from engine.server.metrics import create_registry
from engine.server.serving import serving_http
from engine.server.startup import stats_interval
from engine.server.state import ApiState

logger = get_logger(__name__)

_MAX_RESTARTS = 3
"""Starts in a row of a child that did nothing in between."""

_TERM_GRACE_S = 5.0
_CLOSING = (("connection", "close"),)  # whoever asked during the start comes to an API server next

_T = TypeVar("_T")


async def serve_with_several(
    model: str, args: EngineArgs, listener: socket.socket, processes: Sequence[CoreProcess]
) -> int:
    """Serve until a signal (0) or a failure (1, 2 for wrong flags); closes `listener`.

    `processes` are EngineCores that run already.
    """
    stop = StopEvents()
    stop.install()
    asyncio.get_running_loop().set_exception_handler(exception_handler())
    log_invocation(model, args)
    url = socket_url(listener)
    app = app_of(ApiState(create_registry()), args)
    launcher = Launcher(model, args, listener)
    try:
        access_log = not args.disable_uvicorn_access_log
        starting = serving_http(app, [listener.dup()], access_log=access_log, headers=_CLOSING)
        async with starting:
            config = await stop.unless_requested(launcher.load(processes))
        if config is None or await stop.unless_requested(launcher.go()) is None:
            logger.info("[shutdown] API server: shutdown triggered during start-up")
            return 0
        announce_routes(app, config.tasks, url)
        announce_ready()
        return await launcher.run_until_end(stop)
    except EngineError as error:
        logger.error("%s: %s", type(error).__name__, error)
        return 2 if isinstance(error, ConfigError) else 1
    finally:
        await launcher.shutdown()


@dataclass(slots=True)
class _Child:
    """An API server, or with no number the coordinator; through all its starts."""

    name: str
    number: int | None
    control: Control
    process: ChildProcess
    exit: asyncio.Task[int] = field(init=False)
    is_told: bool = False  # of engines that come and go

    def __post_init__(self) -> None:
        self.exit = asyncio.create_task(self.process.wait())


class Launcher:
    """The children of one server. All methods run in one event loop."""

    def __init__(self, model: str, args: EngineArgs, listener: socket.socket) -> None:
        self._model = model
        self._args = args
        self._listener = listener
        self._addresses = SharedAddresses.create()
        self._context = zmq.asyncio.Context(io_threads=1)
        self._created = int(time.time())
        self._traffic_key = os.urandom(KEY_BYTES)
        self._num_starts = 0
        self._children: dict[str, _Child] = {}
        self._is_up: list[bool] = []
        self._config: EngineConfig | None = None
        self._engines: EngineCoreClient | None = None
        self._readies: tuple[HandshakeReady, ...] = ()
        self._watches: list[asyncio.Task[None]] = []
        self._messages: set[asyncio.Task[None]] = set()
        self._has_failed = asyncio.Event()
        self._is_stopping = False

    async def load(self, processes: Sequence[CoreProcess]) -> EngineConfig:
        """Start everything, until only the word to serve is missing.

        Raises the EngineError that ended the first start to fail; `shutdown` ends the others.
        """
        stats_interval()  # a wrong value is told before the model loads
        for name, number in self._names():
            self._spawn(name, number)
        config = await load_config(self._model, self._args)
        size = config.parallel.data_parallel_size
        self._config, self._is_up = config, [True] * size
        links = [self._addresses.links(self._args.num_api_servers, rank) for rank in range(size)]
        engines = create_client(config, processes, links=links, on_change=self._on_engine)
        self._engines = engines

        async def start_engines() -> None:
            self._readies = await engines.start()

        children = [self._set_up(child) for child in self._children.values()]
        await all_together([start_engines(), *children])
        return config

    async def go(self) -> bool:
        """Let the API servers take connections; True once all of them do."""
        coordinator, *servers = self._children.values()
        self._watches.append(asyncio.create_task(self._read_engines(), name="engines"))
        await self._let_serve(coordinator)
        await all_together(self._let_serve(server) for server in servers)
        for child in (coordinator, *servers):
            self._watches.append(asyncio.create_task(self._watch(child), name=child.name))
        for watch in self._watches:
            watch.add_done_callback(self._on_watch_done)
        return True

    async def run_until_end(self, stop: StopEvents) -> int:
        """Until a stop is asked for and done (0), or nothing can be served any more (1)."""
        await wait_any(stop.requested.wait(), self._has_failed.wait())
        self._is_stopping = True
        if self._has_failed.is_set():
            return 1
        logger.info("[shutdown] API server: shutdown triggered")
        force = asyncio.create_task(self._force(stop))
        await self._end(self._servers(), self._args.shutdown_timeout + _TERM_GRACE_S)
        force.cancel()
        return 0

    async def shutdown(self) -> None:
        """End whatever still runs; returns when it is gone. Idempotent."""
        self._is_stopping = True
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        http_event("Shutting down")
        await self._end(self._servers(), _TERM_GRACE_S)
        await self._end(list(self._children.values()), _TERM_GRACE_S)
        if self._engines is not None:
            await self._engines.shutdown(0.0)
        logger.info("[shutdown] API server: all processes have ended")
        http_event("Application shutdown complete.")
        self._listener.close()
        self._context.destroy(linger=0)
        self._addresses.remove()

    # ---- one child ------------------------------------------------------------------------------

    def _names(self) -> list[tuple[str, int | None]]:
        servers = range(self._args.num_api_servers)
        return [("DPCoordinator", None), *((f"ApiServer_{number}", number) for number in servers)]

    def _servers(self) -> list[_Child]:
        return [child for child in self._children.values() if child.number is not None]

    def _spawn(self, name: str, number: int | None) -> _Child:
        self._num_starts += 1
        address = self._addresses.control(0 if number is None else number, self._num_starts)
        control = Control(self._context, address, binds=True)
        words = ["--name", name, "--control", address, "--parent", str(os.getpid())]
        environment = {COUNTS_VARIABLE: str(self._addresses.folder)}
        descriptors: tuple[int, ...] = ()
        if number is not None:
            descriptors = (self._listener.fileno(),)
            words += ["--listener", str(self._listener.fileno())]
        command = engine_command("coordinator" if number is None else "api-server", *words)
        try:
            process = ChildProcess(command, environment=environment, pass_fds=descriptors)
        except BaseException:
            control.close()
            raise
        child = _Child(name, number, control, process)
        self._children[name] = child
        return child

    async def _set_up(self, child: _Child) -> None:
        """Give it its configuration; returns when it waits for nothing but the engines."""
        assert self._config is not None, "the configuration comes first"
        await self._unless_it_ends(child, child.control.expect(Hello))
        setup = Setup(
            model=self._model,
            config=self._config,
            folder=str(self._addresses.folder),
            num_servers=self._args.num_api_servers,
            server=child.number or 0,
            args=None if child.number is None else self._args,
            created=self._created,
            traffic_key=None if child.number is None else self._traffic_key,
        )
        await child.control.send(setup)
        await self._unless_it_ends(child, child.control.expect(Loaded))

    async def _let_serve(self, child: _Child) -> None:
        child.is_told = True
        await child.control.send(Go(self._readies, tuple(self._is_up)))
        await self._unless_it_ends(child, child.control.expect(Serving))

    async def _unless_it_ends(self, child: _Child, work: Coroutine[Any, Any, _T]) -> _T:
        """EngineError when the child ends before the work is done."""
        task = asyncio.create_task(work)
        try:
            waited: set[asyncio.Task[Any]] = {task, child.exit}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():  # its last word may be on the way
                await asyncio.wait({task}, timeout=0.2)
            if not task.done():
                raise EngineError(
                    f"{child.name} ended during start-up with exit code {child.exit.result()}."
                )
            return task.result()
        finally:
            task.cancel()

    async def _watch(self, child: _Child) -> None:
        """Start it again when it dies, for as long as that helps."""
        num_restarts = 0
        while True:
            if await self._works_until_it_ends(child):
                num_restarts = 0
            await self._bury(child)
            while True:
                if self._is_stopping:
                    return
                if num_restarts == _MAX_RESTARTS:
                    self._give_up(child)
                    return
                num_restarts += 1
                logger.info(
                    "%s is started again (%d of %d).", child.name, num_restarts, _MAX_RESTARTS
                )
                try:
                    child = await self._start_again(child)
                    break
                except (EngineError, OSError, zmq.ZMQError) as error:
                    logger.warning("%s did not start: %s", child.name, error)

    async def _works_until_it_ends(self, child: _Child) -> bool:
        """Whether it has done anything, once it is gone."""
        work = asyncio.create_task(child.control.expect(Worked))
        try:
            await asyncio.wait({child.exit})
            return work.done() and work.exception() is None
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _start_again(self, before: _Child) -> _Child:
        child = self._spawn(before.name, before.number)
        try:
            await self._set_up(child)
            await self._let_serve(child)
        except BaseException:
            await self._end([child], _TERM_GRACE_S)
            child.control.close()
            raise
        logger.info("%s (pid %d) serves again.", child.name, child.process.pid)
        if child.number is None:
            for rank, is_up in enumerate(self._is_up):
                if is_up:
                    self._begin(self._call(TELL_SLEEP, rank))
        return child

    async def _bury(self, child: _Child) -> None:
        """Say that it is dead, and end what it left to the engines, unless all are to end now."""
        if self._is_stopping:
            return
        child.control.close()
        if child.number is None:
            logger.warning(
                "%s (pid %d) died: exit code %s. The API servers go on with what they know.",
                child.name,
                child.process.pid,
                child.process.returncode,
            )
            self._tell(CoordinatorDown())
            return
        living = sum(not server.exit.done() for server in self._servers())
        logger.warning(
            "%s (pid %d) died: exit code %s. Its connections broke off; %d of %d API servers are "
            "left.",
            child.name,
            child.process.pid,
            child.process.returncode,
            living,
            self._args.num_api_servers,
        )
        client = child.number + 1
        self._tell(ClientDown(client))
        # Before a new one can send any: the engine ends all that it knows of this client.
        ranks = [rank for rank, is_up in enumerate(self._is_up) if is_up]
        await asyncio.gather(*(self._call(f"{ABORT_CLIENT}{client}", rank) for rank in ranks))

    async def _call(self, method: str, rank: int) -> None:
        assert self._engines is not None, "the engines come first"
        with contextlib.suppress(EngineError):  # it has ended as well
            await self._engines.call_utility(method, rank)

    def _give_up(self, child: _Child) -> None:
        logger.warning("%s is not started again: it failed too often.", child.name)
        if child.number is not None and all(server.exit.done() for server in self._servers()):
            logger.error("No API server is left.")
            self._has_failed.set()

    async def _end(self, children: Sequence[_Child], timeout_s: float) -> None:
        """SIGTERM, after the time SIGKILL; returns when they are gone."""
        living = {child.exit: child for child in children if not child.exit.done()}
        if not living:
            return
        for child in living.values():
            child.process.send_signal(signal.SIGTERM)
        _, pending = await asyncio.wait(living, timeout=timeout_s)
        for task in pending:
            logger.warning("[shutdown] %s still running; sending SIGKILL", living[task].name)
            living[task].process.send_signal(signal.SIGKILL)
        await asyncio.wait(living)

    async def _force(self, stop: StopEvents) -> None:
        await stop.forced.wait()
        for server in self._servers():
            server.process.send_signal(signal.SIGTERM)  # its second one: nothing is waited for

    # ---- the engines ----------------------------------------------------------------------------

    async def _read_engines(self) -> None:
        """Their answers to calls; all else goes to the API servers."""
        assert self._engines is not None, "the engines come first"
        try:
            while True:
                await self._engines.get_output()
        except EngineDeadError as error:
            if self._is_stopping:
                return
            self._is_stopping = True
            self._tell(EnginesDead(str(error)))
            # They answer who waits, and end by themselves.
            await asyncio.wait({server.exit for server in self._servers()}, timeout=_TERM_GRACE_S)
            self._has_failed.set()

    def _on_engine(self, rank: int, is_up: bool) -> None:
        self._is_up[rank] = is_up
        self._tell(EngineUp(rank) if is_up else EngineDown(rank))

    def _tell(self, message: Message) -> None:
        for child in self._children.values():
            if child.is_told and not child.exit.done():
                self._begin(child.control.send(message))

    def _begin(self, sending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(sending)
        self._messages.add(task)
        task.add_done_callback(self._messages.discard)

    def _on_watch_done(self, watch: asyncio.Task[None]) -> None:
        """What nobody watches any more would stay dead unseen."""
        if watch.cancelled() or (cause := watch.exception()) is None:
            return
        logger.error("The watch over %s failed.", watch.get_name(), exc_info=cause)
        self._has_failed.set()
