"""Runs the API server process: bind, serve HTTP, start EngineCore, wait for the end, clean up.

Owns the order of things and the exit code. HTTP answers from the first second; it says "starting"
until the engine is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Sequence

from engine.args import EngineArgs
from engine.core.core_process import CoreProcess
from engine.core.replicas import create_client
from engine.core.together import wait_any
from engine.errors import ConfigError, EngineError
from engine.frontend.async_llm import ClientFactory
from engine.frontend.traffic_recorder import check_traffic_file
from engine.logger import get_logger, setup_logging
from engine.server.announcements import announce_ready, announce_routes, log_invocation
from engine.server.api import app_of
from engine.server.api_servers.launcher import serve_with_several
from engine.server.http import event_loop
from engine.server.http.binding import bind_socket, bind_uds, explain_bind_error, socket_url
from engine.server.http.connections import exception_handler
from engine.server.http.http_log import setup_http_logging
from engine.server.http.stop_signals import StopEvents
from engine.server.metrics import create_registry
from engine.server.routes.debug import check_debug_flags
from engine.server.serving import run_until_end, saying_so, serving_http
from engine.server.startup import start_engine
from engine.server.state import ApiState

logger = get_logger(__name__)


def run(
    model: str,
    args: EngineArgs,
    client_factory: ClientFactory | None = None,
    processes: Sequence[CoreProcess] = (),
) -> int:
    """Serve `model` until a signal or a failure; returns the process's exit code.

    `processes` are EngineCores that run already; a `client_factory` brings others.
    0: stopped by a signal. 1: the model, the memory, the port or the engine failed. 2: wrong flags.
    """
    secrets = (args.api_key or "",)
    setup_logging("APIServer", secrets=secrets)
    setup_http_logging("APIServer", secrets=secrets)
    try:
        check_debug_flags(args)
        check_traffic_file(args.record_traffic)
        listener = bind_uds(args.uds) if args.uds else bind_socket(args.host, args.port)
    except ConfigError as error:
        return _fail(error)
    except OSError as error:
        logger.error("OSError: %s", error)
        logger.error("ConfigError: %s", explain_bind_error(error, args.host, args.port))
        return 1
    try:
        if args.num_api_servers > 1:
            return asyncio.run(serve_with_several(model, args, listener, processes))
        make_client = client_factory or (lambda config: create_client(config, processes))
        return event_loop.run(_serve(model, args, listener, make_client))
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
    log_invocation(model, args)
    state = ApiState(create_registry())
    app = app_of(state, args)
    http = serving_http(app, [listener], access_log=not args.disable_uvicorn_access_log)
    async with saying_so(http):
        start = asyncio.create_task(start_engine(model, args, state, client_factory))
        await wait_any(start, stop.requested.wait())
        if not start.done():
            logger.info("[shutdown] API server: shutdown triggered during start-up")
            start.cancel()
            await asyncio.gather(start, return_exceptions=True)
            return 0
        try:
            engine = start.result()
        except EngineError as error:
            return _fail(error)
        announce_routes(app, engine.services.tasks, socket_url(listener))
        state.become_ready(engine.services)
        announce_ready()
        return await run_until_end(engine, state, stop, args.shutdown_timeout)
