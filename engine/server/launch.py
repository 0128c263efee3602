"""Runs the API server process: bind, serve HTTP, start EngineCore, wait for the end, clean up.

Owns the order of things and the exit code. HTTP answers from the first second; it says "starting"
until the engine is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.routing import APIRoute

from engine.args import EngineArgs
from engine.errors import ConfigError, EngineError
from engine.frontend.async_llm import ClientFactory, real_client
from engine.logger import get_logger, setup_logging
from engine.machine.addresses import is_loopback
from engine.machine.heap import Heap
from engine.server.api import create_app
from engine.server.http.binding import bind_socket, bind_uds, explain_bind_error, socket_url
from engine.server.http.browsers import browser_access
from engine.server.http.connections import Connections, exception_handler, raise_open_files_limit
from engine.server.http.http_log import http_event, setup_http_logging
from engine.server.http.stop_signals import StopEvents
from engine.server.metrics import create_registry
from engine.server.routes.debug import check_debug_flags
from engine.server.startup import RunningEngine, start_engine
from engine.server.state import ApiState, ServerPhase
from engine.version import __version__

logger = get_logger(__name__)

_HEAP_CHECK_S = 5

# What answers that are already being written get after the engine has ended.
_LAST_ANSWERS_S = 1


def run(model: str, args: EngineArgs, client_factory: ClientFactory | None = None) -> int:
    """Serve `model` until a signal or a failure; returns the process's exit code.

    0: stopped by a signal. 1: the model, the memory, the port or the engine failed. 2: wrong flags.
    """
    secrets = (args.api_key or "",)
    setup_logging("APIServer", secrets=secrets)
    setup_http_logging("APIServer", secrets=secrets)
    try:
        check_debug_flags(args)
        listener = bind_uds(args.uds) if args.uds else bind_socket(args.host, args.port)
    except ConfigError as error:
        return _fail(error)
    except OSError as error:
        logger.error("OSError: %s", error)
        logger.error("ConfigError: %s", explain_bind_error(error, args.host, args.port))
        return 1
    try:
        return asyncio.run(_serve(model, args, listener, client_factory or real_client))
    finally:
        if args.uds:
            with contextlib.suppress(OSError):
                os.unlink(args.uds)


def _fail(error: EngineError) -> int:
    logger.error("%s: %s", type(error).__name__, error)
    return 2 if isinstance(error, ConfigError) else 1


async def _serve(
    model: str, args: EngineArgs, listener: socket.socket, client_factory: ClientFactory
) -> int:
    stop = StopEvents()
    stop.install()
    asyncio.get_running_loop().set_exception_handler(exception_handler())
    _log_invocation(model, args)
    state = ApiState(create_registry())
    app = create_app(
        state,
        args.api_key,
        has_debug_routes=args.enable_debug_endpoints,
        has_tokenizer_info=args.enable_tokenizer_info_endpoint,
        browsers=browser_access(args),
    )
    async with _serving_http(app, args, listener):
        start = asyncio.create_task(start_engine(model, args, state, client_factory))
        await _wait_any(start, stop.requested.wait())
        if not start.done():
            logger.info("[shutdown] API server: shutdown triggered during start-up")
            start.cancel()
            await asyncio.gather(start, return_exceptions=True)
            return 0
        try:
            engine = start.result()
        except EngineError as error:
            return _fail(error)
        _announce(app, engine, state, socket_url(listener))
        return await _run_until_end(engine, state, stop, args.shutdown_timeout)


# ---- start --------------------------------------------------------------------------------------


def _log_invocation(model: str, args: EngineArgs) -> None:
    logger.info("Stoker server version %s, serving model %s", __version__, model)
    logger.info("non-default args: %s", {"model_tag": model, "model": model, **args.non_default()})
    if args.api_key is None and not args.uds and not is_loopback(args.host):
        logger.warning(
            "Listening on %s without an API key: whoever reaches this port can use the model; set "
            "STOKER_API_KEY or use --host 127.0.0.1.",
            args.host,
        )


def _announce(app: FastAPI, engine: RunningEngine, state: ApiState, url: str) -> None:
    logger.info("Supported tasks: %s", engine.services.tasks.names)
    logger.info("Starting Stoker server on %s", url)
    logger.info("Available routes are:")
    for route in app.routes:
        if isinstance(route, APIRoute):
            logger.info(
                "Route: %s, Methods: %s", route.path, ", ".join(sorted(route.methods or ()))
            )
    state.become_ready(engine.services)
    http_event(f"Started server process [{os.getpid()}]")
    http_event("Waiting for application startup.")
    http_event("Application startup complete.")


# ---- run and stop --------------------------------------------------------------------------------


async def _run_until_end(
    engine: RunningEngine, state: ApiState, stop: StopEvents, timeout_s: float
) -> int:
    tasks = [asyncio.create_task(_log_stats(engine)), asyncio.create_task(_give_back_memory())]
    try:
        await _wait_any(stop.requested.wait(), engine.llm.dead.wait())
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
    await _wait_any(engine.llm.drain(timeout_s), stop.forced.wait())
    await engine.llm.shutdown(EngineError("The server was stopped; this request was cut off."))
    # Nothing is left to drain: only the process itself has to end.
    await engine.client.shutdown(0.0)
    logger.info("[shutdown] API server: engine client stopped")


class _HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers: StopEvents decides when it ends."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Change no handler, where uvicorn would put its own."""
        yield


@contextlib.asynccontextmanager
async def _serving_http(
    app: FastAPI, args: EngineArgs, listener: socket.socket
) -> AsyncGenerator[None, None]:
    server = _HttpServer(
        uvicorn.Config(
            app,
            http=Connections(raise_open_files_limit()).protocol,  # type: ignore[arg-type]
            log_config=None,
            access_log=not args.disable_uvicorn_access_log,
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=_LAST_ANSWERS_S,
        )
    )
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        logger.info("[shutdown] API server: shutting down FastAPI HTTP server")
        http_event("Shutting down")
        server.should_exit = True
        await task
        http_event("Application shutdown complete.")


# ---- waiting -------------------------------------------------------------------------------------


async def _wait_any(*waits: Coroutine[Any, Any, Any] | asyncio.Task[Any]) -> None:
    """Return when the first of them is done; coroutines that are not are cancelled."""
    tasks = {wait: asyncio.ensure_future(wait) for wait in waits}
    await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
    for wait, task in tasks.items():
        if wait is not task:
            task.cancel()
