"""The FastAPI application: routes, reading bodies, and what becomes of errors.

Endpoints hold no logic of their own; chat, completions and introspection do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.args import EngineArgs
from engine.errors import EngineError
from engine.frontend.embeddings import embed_all
from engine.frontend.request_traces import Marks
from engine.logger import get_logger
from engine.server.admission import AdmissionGate
from engine.server.errors import ApiError, error_response, to_api_error
from engine.server.generation import Job, collect_job
from engine.server.http.auth import BearerAuth
from engine.server.http.body_limits import read_json_body
from engine.server.http.browsers import BrowserAccess, add_browser_rules, browser_access
from engine.server.http.client_watch import ClientGone, unless_client_goes
from engine.server.http.connections import connection_of
from engine.server.http.http_metrics import count_http_requests
from engine.server.metrics import exposition
from engine.server.openapi import openapi_document
from engine.server.pings import with_pings
from engine.server.protocol import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    TokenizeBody,
    parse_body,
)
from engine.server.protocol_messages import CountTokensBody, MessagesBody
from engine.server.protocol_responses import ResponsesBody
from engine.server.routes import introspection
from engine.server.routes.chat import answer_chat
from engine.server.routes.completions import answer_completion
from engine.server.routes.debug import add_debug_routes
from engine.server.routes.embeddings import EmbeddingBody, make_embedding_job
from engine.server.routes.lora import (
    LoadAdapterBody,
    UnloadAdapterBody,
    load_adapter,
    unload_adapter,
)
from engine.server.routes.messages import PING, answer_messages, count_tokens
from engine.server.routes.responses import answer_response
from engine.server.routes.score import RerankBody, ScoreBody
from engine.server.routes.sleep import is_sleeping, sleep, wake_up
from engine.server.state import ApiState, Services
from engine.server.streaming import (
    AnswerFormat,
    Document,
    EventStream,
    document,
    stream_job,
)

logger = get_logger(__name__)

_NO_BROWSERS = BrowserAccess()

StreamedBodyT = TypeVar("StreamedBodyT", ChatBody, CompletionBody, ResponsesBody, MessagesBody)
MakeAnswer = Callable[
    [Services, StreamedBodyT, Marks], Coroutine[Any, Any, tuple[Job, AnswerFormat]]
]


def app_of(state: ApiState, args: EngineArgs) -> FastAPI:
    """The application over `state` that the flags ask for."""
    return create_app(
        state,
        args.api_key,
        has_debug_routes=args.enable_debug_endpoints,
        has_tokenizer_info=args.enable_tokenizer_info_endpoint,
        browsers=browser_access(args),
    )


def create_app(
    state: ApiState,
    api_key: str | None = None,
    *,
    has_debug_routes: bool = False,
    has_tokenizer_info: bool = False,
    browsers: BrowserAccess = _NO_BROWSERS,
) -> FastAPI:
    """The application over `state`; with a key, /v1 and /debug need it."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    routes = _Routes(state)
    # What is asked most comes first: a request is compared with one route after the other. These
    # read their bodies themselves, and so do without what FastAPI does to find parameters.
    for path, generate in (
        ("/v1/chat/completions", routes.chat_completions),
        ("/v1/completions", routes.completions),
        ("/v1/responses", routes.responses),
        ("/v1/messages", routes.messages),
    ):
        app.add_route(path, generate, methods=["POST"])
    for path, methods, endpoint in (
        ("/", ["GET", "HEAD"], routes.root),
        ("/health", ["GET", "HEAD"], routes.health),
        ("/ping", ["GET", "POST"], routes.health),
        ("/load", ["GET"], routes.load),
        ("/version", ["GET"], routes.version),
        ("/metrics", ["GET"], routes.metrics),
        ("/tokenize", ["POST"], routes.tokenize),
        ("/detokenize", ["POST"], routes.detokenize),
        ("/reset_prefix_cache", ["POST"], routes.reset_prefix_cache),
        ("/sleep", ["POST"], routes.sleep),
        ("/wake_up", ["POST"], routes.wake_up),
        ("/is_sleeping", ["GET"], routes.is_sleeping),
        ("/openapi.json", ["GET"], routes.openapi),
        ("/v1/models", ["GET"], routes.models),
        ("/v1/models/{name:path}", ["GET"], routes.model),
        ("/v1/load_lora_adapter", ["POST"], routes.load_lora_adapter),
        ("/v1/unload_lora_adapter", ["POST"], routes.unload_lora_adapter),
        ("/v1/embeddings", ["POST"], routes.embeddings),
        ("/v1/score", ["POST"], routes.score),
        ("/v1/rerank", ["POST"], routes.rerank),
        ("/v2/rerank", ["POST"], routes.rerank),
        ("/v1/messages/count_tokens", ["POST"], routes.count_tokens),
    ):
        app.add_api_route(path, endpoint, methods=methods, response_model=None)
    if has_debug_routes:
        add_debug_routes(app, state.require_ready)
    if has_tokenizer_info:
        app.add_api_route(
            "/tokenizer_info", routes.tokenizer_info, methods=["GET"], response_model=None
        )
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(EngineError, _on_engine_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(ClientGone, _on_client_gone)
    app.add_exception_handler(ClientDisconnect, _on_client_gone)
    app.add_middleware(AdmissionGate, admission=lambda: state.admission)
    app.add_middleware(_LastResort)
    if api_key:
        app.add_middleware(BearerAuth, api_key=api_key)
    count_http_requests(app, state.registry)
    add_browser_rules(app, browsers)
    return app


class _Routes:
    """Endpoint functions over one state."""

    def __init__(self, state: ApiState) -> None:
        self._state = state

    async def health(self) -> Response:
        return introspection.health(self._state)

    async def root(self) -> Response:
        return introspection.root()

    async def load(self, request: Request) -> Response:
        return await introspection.load(self._state, request)

    async def version(self) -> Response:
        return introspection.version()

    async def metrics(self) -> Response:
        text = exposition(self._state.registry)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def models(self) -> Response:
        return introspection.models(self._state.require_ready())

    async def model(self, name: str) -> Response:
        return introspection.model(self._state.require_ready(), name)

    async def tokenize(self, request: Request) -> Response:
        services = self._state.require_ready()
        raw = await read_json_body(request, services.images.max_body_bytes)
        body = parse_body(TokenizeBody, raw)
        return await introspection.tokenize(services, body)

    async def detokenize(self, request: Request) -> Response:
        services = self._state.require_ready()
        body = parse_body(DetokenizeBody, await read_json_body(request))
        return await introspection.detokenize(services, body)

    async def tokenizer_info(self) -> Response:
        return introspection.tokenizer_info(self._state.require_ready())

    async def reset_prefix_cache(self) -> Response:
        return await introspection.reset_prefix_cache(self._state.require_ready())

    async def sleep(self, request: Request) -> Response:
        return await sleep(self._state.require_ready(), request.query_params)

    async def wake_up(self, request: Request) -> Response:
        return await wake_up(self._state.require_ready(), request.query_params)

    async def is_sleeping(self) -> Response:
        return await is_sleeping(self._state.require_ready())

    async def openapi(self, request: Request) -> Response:
        return introspection.json_response(openapi_document(request.app.routes))

    async def load_lora_adapter(self, request: Request) -> Response:
        services = self._state.require_ready()
        body = parse_body(LoadAdapterBody, await read_json_body(request))
        return await load_adapter(services, body)

    async def unload_lora_adapter(self, request: Request) -> Response:
        services = self._state.require_ready()
        body = parse_body(UnloadAdapterBody, await read_json_body(request))
        return await unload_adapter(services, body)

    async def chat_completions(self, request: Request) -> Response:
        return await self._generate(request, ChatBody, answer_chat)

    async def completions(self, request: Request) -> Response:
        return await self._generate(request, CompletionBody, answer_completion)

    async def responses(self, request: Request) -> Response:
        return await self._generate(request, ResponsesBody, answer_response)

    async def messages(self, request: Request) -> Response:
        return await self._generate(request, MessagesBody, answer_messages, PING)

    async def _generate(
        self,
        request: Request,
        kind: type[StreamedBodyT],
        answer: MakeAnswer[StreamedBodyT],
        ping: bytes | None = None,
    ) -> Response:
        """Read, let in, prepare, run. Whoever is not let in has cost no more than its reading, and
        mostly not that (AdmissionGate).
        """
        services = self._state.require_ready()
        services.require_generation()
        marks = _arrival(request)
        raw = await read_json_body(request, services.images.max_body_bytes)
        seat = services.admission.enter(len(raw))
        try:
            body = parse_body(kind, raw)
            del raw  # images in it are large, and the answer may take long
            marks.note("read")
            job, form = await unless_client_goes(request, answer(services, body, marks))
            services.admission.note_prompt(seat, job.num_prompt_tokens)
        except BaseException:
            seat.leave()
            raise
        job = dataclasses.replace(job, on_start=seat.leave)
        is_streamed = body.stream
        del body
        if is_streamed:
            events = stream_job(services.llm, job, form, connection_of(request.scope))
            return EventStream(events if ping is None else with_pings(events, form, ping))
        choices = await unless_client_goes(request, collect_job(services.llm, job))
        return Document(await document(form, choices))

    async def count_tokens(self, request: Request) -> Response:
        services = self._state.require_ready()
        services.require_generation()
        raw = await read_json_body(request, services.images.max_body_bytes)
        body = parse_body(CountTokensBody, raw)
        return await count_tokens(services, body)

    async def embeddings(self, request: Request) -> Response:
        return await self._embed(request, EmbeddingBody)

    async def score(self, request: Request) -> Response:
        return await self._embed(request, ScoreBody)

    async def rerank(self, request: Request) -> Response:
        return await self._embed(request, RerankBody)

    async def _embed(
        self, request: Request, kind: type[EmbeddingBody] | type[ScoreBody] | type[RerankBody]
    ) -> Response:
        services = self._state.require_ready()
        services.require_embeddings()
        raw = await read_json_body(request)
        seat = services.admission.enter(len(raw))
        try:
            body = parse_body(kind, raw)
            work = make_embedding_job(services, body.embedding_body)
            job = await unless_client_goes(request, work)
        finally:
            seat.leave()
        vectors = await unless_client_goes(request, embed_all(services.llm, job.requests))
        return Document(await body.document(job, vectors))


def _arrival(request: Request) -> Marks:
    client = request.client
    marks = Marks(None if client is None else f"{client.host}:{client.port}")
    marks.note("received")
    return marks


async def _on_api_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _on_engine_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, EngineError)
    return error_response(to_api_error(error))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path}"
    message = {
        404: f"There is no route {where}.",
        405: f"The route does not take this method: {where}.",
    }.get(error.status_code, str(error.detail))
    headers = dict(error.headers or {})
    return error_response(ApiError(error.status_code, message, headers=headers))


async def _on_client_gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it; nginx's word for the access log


class _LastResort:
    """ASGI middleware: whatever else goes wrong is logged and answered with 500."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_started = False

        async def watched_send(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except Exception:
            logger.exception("%s %s failed.", scope.get("method"), scope.get("path"))
            if has_started:
                raise
            error = ApiError(500, "The server failed on this request; its log says why.")
            await error_response(error)(scope, receive, send)
