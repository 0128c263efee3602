"""How an API server answers over HTTP until it is stopped, and how it stops.

The same for the one that has all, and for each of several.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence

import uvicorn
from fastapi import FastAPI

from engine.core.together import wait_any
from engine.errors import EngineError
from engine.logger import get_logger
from engine.machine.heap import Heap
from engine.server.http.connections import Connections, raise_open_files_limit
from engine.server.http.http_log import http_event
from engine.server.http.stop_signals import StopEvents
from engine.server.startup import RunningEngine
from engine.server.state import ApiState, ServerPhase

logger = get_logger(__name__)

_HEAP_CHECK_S = 5

# What answers that are already being written get after the engine has ended.
_LAST_ANSWERS_S = 1

_UPDATES_DATE = 0  # a tick of uvicorn's that writes the date into its headers

_OTHERS_TURN_S = 0.001  # enough for a process that sleeps to take the next connection
_AFTER_FAILURE_S = 1.0  # as asyncio waits


async def run_until_end(
    engine: RunningEngine, state: ApiState, stop: StopEvents, timeout_s: float
) -> int:
    """Serve until a stop is asked for (0) or the engine is dead (1); requests may end first."""
    tasks = [asyncio.create_task(_log_stats(engine)), asyncio.create_task(_give_back_memory())]
    try:
        await wait_any(stop.requested.wait(), engine.llm.dead.wait())
        if engine.llm.dead.is_set():
            state.phase = ServerPhase.DEAD
            await engine.client.shutdown(0.0)
            return 1
        state.phase = ServerPhase.STOPPING
        await _stop_engine(engine, stop, timeout_s)
        return 0
    finally:
        for task in tasks:
            task.cancel()
        await engine.services.grammars.close()
        await engine.services.images.close()


async def _log_stats(engine: RunningEngine) -> None:
    if engine.stat_logger is not None:
        await engine.stat_logger.run(engine.stats_interval_s)


async def _give_back_memory() -> None:
    """What large requests leave behind, and what a start does: no collection looks at it again."""
    gc.collect()
    gc.freeze()
    heap = Heap()
    while True:
        await asyncio.sleep(_HEAP_CHECK_S)
        heap.give_back()


async def _stop_engine(engine: RunningEngine, stop: StopEvents, timeout_s: float) -> None:
    logger.info("[shutdown] API server: shutdown triggered")
    logger.info(
        "[shutdown] API server: stopping engine client mode=%s timeout=%gs",
        "drain" if timeout_s > 0 else "abort",
        timeout_s,
    )
    await wait_any(engine.llm.drain(timeout_s), stop.forced.wait())
    await engine.llm.shutdown(EngineError("The server was stopped; this request was cut off."))
    # Nothing is left to drain: only the process itself has to end.
    await engine.client.shutdown(0.0)
    logger.info("[shutdown] API server: engine client stopped")


class _HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers: StopEvents decides when it ends.

    `shared` is a listening socket from which other processes take connections too.
    """

    def __init__(self, config: uvicorn.Config, shared: socket.socket | None) -> None:
        super().__init__(config)
        self._shared = shared
        self._taking: asyncio.Task[None] | None = None
        self._end = asyncio.Event()

    def end(self) -> None:
        """Begin an orderly stop."""
        self.should_exit = True
        self._end.set()

    async def main_loop(self) -> None:
        """As uvicorn's, which wakes up ten times a second to see whether it should end."""
        while not await self.on_tick(_UPDATES_DATE):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._end.wait(), 1)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Change no handler, where uvicorn would put its own."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn; from a socket that is shared, connections are taken by our own task."""
        await super().startup(sockets)
        if self._shared is not None:
            self._taking = asyncio.create_task(self._take_some(self._shared))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more, and end those that are there."""
        if self._taking is not None:
            self._taking.cancel()
            await asyncio.wait({self._taking})
        await super().shutdown(sockets)

    async def _take_some(self, listener: socket.socket) -> None:
        """One connection at a time: asyncio's own servers take all that wait."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
                try:
                    await loop.connect_accepted_socket(self._new_protocol, connection)
                except OSError:
                    connection.close()
                    raise
            except OSError as error:  # no file is left to open
                loop.call_exception_handler({"message": "accept failed", "exception": error})
                await asyncio.sleep(_AFTER_FAILURE_S)
                continue
            await asyncio.sleep(_OTHERS_TURN_S)

    def _new_protocol(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )


@contextlib.asynccontextmanager
async def serving_http(
    app: FastAPI,
    listeners: Sequence[socket.socket],
    *,
    access_log: bool,
    headers: Sequence[tuple[str, str]] = (),
    shared: socket.socket | None = None,
) -> AsyncGenerator[None, None]:
    """Answer on listening sockets, which are closed at the end; every answer has `headers`.

    Of `shared`, on which other processes listen too, every process takes some connections.
    """
    server = _HttpServer(
        uvicorn.Config(
            app,
            http=Connections(raise_open_files_limit()).protocol,  # type: ignore[arg-type]
            log_config=None,
            access_log=access_log,
            lifespan="off",
            ws="none",
            server_header=False,
            headers=list(headers),
            timeout_graceful_shutdown=_LAST_ANSWERS_S,
        ),
        shared,
    )
    task = asyncio.create_task(server.serve(sockets=list(listeners)))
    try:
        yield
    finally:
        server.end()
        await task


@contextlib.asynccontextmanager
async def saying_so(serving: contextlib.AbstractAsyncContextManager[None]) -> AsyncIterator[None]:
    """`serving_http` with the lines that tell its end."""
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(http_event, "Application shutdown complete.")
        await stack.enter_async_context(serving)
        try:
            yield
        finally:
            logger.info("[shutdown] API server: shutting down FastAPI HTTP server")
            http_event("Shutting down")
