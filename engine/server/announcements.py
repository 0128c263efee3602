"""The lines in which a server says what it was asked to serve, and that it does."""

from __future__ import annotations

import os

from fastapi import FastAPI
from starlette.routing import Route

from engine.args import EngineArgs
from engine.config import TaskConfig
from engine.frontend.engine_start import log_arguments
from engine.logger import get_logger
from engine.machine.addresses import is_loopback
from engine.server.http.http_log import http_event
from engine.version import __version__

logger = get_logger(__name__)


def log_invocation(model: str, args: EngineArgs) -> None:
    """What was typed, and whom it lets in."""
    logger.info("Stoker server version %s, serving model %s", __version__, model)
    log_arguments(model, args)
    if args.api_key is None and not args.uds and not is_loopback(args.host):
        logger.warning(
            "Listening on %s without an API key: whoever reaches this port can use the model; set "
            "STOKER_API_KEY or use --host 127.0.0.1.",
            args.host,
        )


def announce_routes(app: FastAPI, tasks: TaskConfig, url: str) -> None:
    """The engine is there: what is served, and where."""
    logger.info("Supported tasks: %s", tasks.names)
    logger.info("Starting Stoker server on %s", url)
    logger.info("Available routes are:")
    for route in app.routes:
        if isinstance(route, Route):
            logger.info(
                "Route: %s, Methods: %s", route.path, ", ".join(sorted(route.methods or ()))
            )


def announce_ready() -> None:
    """Requests are served from now on: uvicorn's lines."""
    http_event(f"Started server process [{os.getpid()}]")
    http_event("Waiting for application startup.")
    http_event("Application startup complete.")
