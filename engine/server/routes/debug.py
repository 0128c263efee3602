"""/debug: what the scheduler does, which requests live, who owns each block; ends a request.

Only there with --enable-debug-endpoints, and behind the key. Tells a prompt's text with
--show-prompts alone, in a request's trace.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from engine.args import EngineArgs
from engine.errors import ConfigError
from engine.frontend.async_llm import AsyncLLM
from engine.machine.addresses import is_loopback
from engine.server.errors import ApiError, unavailable
from engine.server.routes.introspection import json_response
from engine.server.state import Services

ANSWER_TIMEOUT_S = 2.0
"""EngineCore answers between two steps; a step that lasts longer than this is worth telling."""

T = TypeVar("T")
_JSON = "application/json"


def check_debug_flags(args: EngineArgs) -> None:
    """ConfigError where they contradict each other or would let anybody in."""
    if args.enable_debug_endpoints:
        check_debug_access(args.host, args.api_key)
    elif args.show_prompts:
        raise ConfigError(
            "--show-prompts tells prompts in /debug, which is off; add --enable-debug-endpoints."
        )


def check_debug_access(host: str, api_key: str | None) -> None:
    """ConfigError where whoever reaches the port could look at and end others' requests."""
    if api_key is None and not is_loopback(host):
        raise ConfigError(
            f"--enable-debug-endpoints lets whoever reaches {host} end requests, and there is no "
            "API key; set STOKER_API_KEY, or use --host 127.0.0.1."
        )


def add_debug_routes(app: FastAPI, require_ready: Callable[[], Services]) -> None:
    """Four documents to read and one thing to do."""
    routes = _DebugRoutes(require_ready)
    for path, method, endpoint in (
        ("/debug/scheduler", "GET", routes.scheduler),
        ("/debug/requests", "GET", routes.requests),
        ("/debug/blocks", "GET", routes.blocks),
        ("/debug/requests/{request_id}", "DELETE", routes.cancel),
        ("/debug/requests/{request_id}/trace", "GET", routes.trace),
    ):
        app.add_api_route(path, endpoint, methods=[method], response_model=None)


class _DebugRoutes:
    def __init__(self, require_ready: Callable[[], Services]) -> None:
        self._require_ready = require_ready

    async def scheduler(self, engine: int = 0) -> Response:
        return Response(await self._document("scheduler", engine), media_type=_JSON)

    async def requests(self, request: Request) -> Response:
        services = self._require_ready()
        llm = services.llm
        texts = await self._answer(llm, llm.request_documents())
        documents = {engine: json.loads(text) for engine, text in sorted(texts.items())}
        entries: list[dict[str, object]] = []
        for engine, document in documents.items():
            for entry in document["data"]:
                if llm.num_engines > 1:
                    entry["engine"] = engine
                if llm.traces is not None:
                    entry["client"] = llm.traces.client_of(entry["id"])
                entries.append(entry)
        for document in await services.peers.documents(request) if entries else ():
            clients = {entry["id"]: entry.get("client") for entry in document["data"]}
            for entry in entries:
                if entry.get("client") is None and clients.get(entry["id"]) is not None:
                    entry["client"] = clients[entry["id"]]
        not_listed = sum(document["num_not_listed"] for document in documents.values())
        return json_response({"object": "list", "data": entries, "num_not_listed": not_listed})

    async def trace(self, request_id: str, request: Request) -> Response:
        services = self._require_ready()
        llm = services.llm
        document = await self._answer(llm, llm.trace_document(request_id))
        if document is not None:
            return json_response(document)
        if (answer := await services.peers.first_answer(request)) is not None:
            return answer
        raise ApiError(
            404,
            f"No times of a request `{request_id}` are kept; only the newest requests' are.",
            code="request_not_found",
        )

    async def blocks(self, engine: int = 0) -> Response:
        return Response(await self._document("blocks", engine), media_type=_JSON)

    async def cancel(self, request_id: str, request: Request) -> Response:
        services = self._require_ready()
        if services.llm.cancel(request_id):
            return json_response({"id": request_id, "cancelled": True})
        if (answer := await services.peers.first_answer(request)) is not None:
            return answer
        raise ApiError(
            404,
            f"There is no live request `{request_id}`; it may have ended. GET /debug/requests "
            "lists those that live.",
            code="request_not_found",
        )

    async def _document(self, name: str, engine: int) -> str:
        llm = self._require_ready().llm
        if not 0 <= engine < llm.num_engines:
            raise ApiError(
                404,
                f"There is no engine {engine}; this server has {llm.num_engines}, counted from 0.",
                param="engine",
                code="engine_not_found",
            )
        text = await self._answer(llm, llm.debug_document(name, engine))
        assert text is not None, "the engine keeps it where these routes are"
        return text

    async def _answer(self, llm: AsyncLLM, question: Awaitable[T]) -> T:
        try:
            return await asyncio.wait_for(question, ANSWER_TIMEOUT_S)
        except asyncio.TimeoutError:
            raise unavailable(
                f"The engine has not ended its step for {ANSWER_TIMEOUT_S:g} s "
                f"({llm.num_unfinished} requests in flight).",
                code="engine_in_step",
            ) from None
