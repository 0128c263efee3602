"""The real application over a FakeCore, on a real port, in the test's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import uvicorn
from starlette.types import ASGIApp

from engine.config import CacheConfig
from engine.core.grammar import GrammarModel
from engine.core.grammar_checker import GrammarChecker
from engine.frontend.async_llm import AsyncLLM
from engine.frontend.chat_template import load_chat_template
from engine.frontend.input_processor import InputProcessor
from engine.frontend.request_traces import FrontendTraces
from engine.frontend.tokenizer import Tokenizer
from engine.server.api import create_app
from engine.server.http.binding import bind_socket, socket_url
from engine.server.http.browsers import BrowserAccess
from engine.server.http.connections import ConnectionLimits, Connections
from engine.server.images import ImageInputs
from engine.server.metrics import EngineMetrics, create_registry
from engine.server.parsers.thinking import thought_marks
from engine.server.state import ApiState, ServerPhase, Services
from tests.places import ROOT
from tests.server.fake_core import HIDDEN_SIZE, READY, FakeCore
from tests.tiny_model import EOS, VOCAB

MODEL = "tiny"
_ROOMY = ConnectionLimits(1000)


@dataclass
class Served:
    """A running server and its parts."""

    url: str
    core: FakeCore
    state: ApiState
    llm: AsyncLLM
    services: Services
    http: httpx.AsyncClient
    openai: openai.AsyncOpenAI


def make_llm(
    folder: Path,
    core: FakeCore,
    state: ApiState | None = None,
    traces: FrontendTraces | None = None,
    vocab_size: int = VOCAB,
) -> AsyncLLM:
    tokenizer = Tokenizer.from_folder(folder)
    sinks = []
    if state is not None:
        sinks.append(EngineMetrics(state.registry, MODEL, CacheConfig(), [READY]))
    return AsyncLLM(
        core,
        tokenizer,
        InputProcessor(
            vocab_size=vocab_size,
            max_model_len=READY.max_model_len,
            eos_token_ids=(EOS,),
            max_chars_per_token=tokenizer.max_chars_per_token,
        ),
        sinks,
        traces,
    )


@contextlib.asynccontextmanager
async def serving(
    folder: Path,
    core: FakeCore,
    *,
    api_key: str | None = None,
    is_ready: bool = True,
    in_process: bool = False,
    has_debug_routes: bool = False,
    tool_call_parser: str | None = None,
    reasoning_parser: str | None = None,
    tokenizer_info: Mapping[str, object] | None = None,
    browsers: BrowserAccess | None = None,
    images: ImageInputs | None = None,
    vocab_size: int = VOCAB,
) -> AsyncGenerator[Served, None]:
    """Serve; `in_process` leaves the socket out, which is faster and enough for plain answers."""
    state = ApiState(create_registry())
    llm = make_llm(folder, core, state, FrontendTraces() if has_debug_routes else None, vocab_size)
    services = Services(
        llm=llm,
        grammars=GrammarChecker(GrammarModel(str(folder), VOCAB, (EOS,))),
        chat_template=load_chat_template(folder, llm.tokenizer.special_tokens),
        model_name=MODEL,
        root=str(folder),
        created=1,
        embedding_size=HIDDEN_SIZE,
        tool_call_parser=tool_call_parser,
        thought_marks=thought_marks(reasoning_parser, llm.tokenizer),
        tokenizer_info=tokenizer_info or {},
        images=images or ImageInputs(),
    )
    llm.start()
    if is_ready:
        state.become_ready(services)
    async with contextlib.AsyncExitStack() as stack:
        transport, url = None, "http://in-process"
        app = create_app(
            state,
            api_key,
            has_debug_routes=has_debug_routes,
            has_tokenizer_info=tokenizer_info is not None,
            browsers=browsers or BrowserAccess(),
        )
        if in_process:
            transport = httpx.ASGITransport(app)
        else:
            url = socket_url(await stack.enter_async_context(http_server(app)))
        # No certificates: reading them takes longer than most tests.
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=url, timeout=120, transport=transport, verify=False)
        )
        client = await stack.enter_async_context(
            openai.AsyncOpenAI(
                base_url=f"{url}/v1", api_key=api_key or "none", max_retries=0, timeout=120
            )
        )
        yield Served(url, core, state, llm, services, http, client)
    state.phase = ServerPhase.STOPPING
    await services.grammars.close()
    await services.images.close()
    await core.shutdown(0.0)


@contextlib.asynccontextmanager
async def http_server(
    app: ASGIApp, limits: ConnectionLimits = _ROOMY
) -> AsyncGenerator[socket.socket, None]:
    """Serve on a free port, as an API server does; gives the socket that listens there."""
    listener = bind_socket("127.0.0.1", 0)
    config = uvicorn.Config(
        app,
        http=Connections(limits).protocol,  # type: ignore[arg-type]
        log_config=None,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve(sockets=[listener]))
    try:
        yield listener
    finally:
        server.should_exit = True
        await task


def prompt_of(served: Served) -> str:
    """What the last request gave to the model, special tokens included."""
    ids = served.core.requests[-1].prompt_token_ids
    return served.llm.tokenizer.decode(ids, skip_special_tokens=False)


def named_events(text: str) -> tuple[list[str], list[dict[str, Any]]]:
    """A stream's event names and its documents, in order."""
    kinds = re.findall(r"^event: (.*)$", text, re.MULTILINE)
    return kinds, [json.loads(line) for line in re.findall(r"^data: (.*)$", text, re.MULTILINE)]


def documented_words(title: str) -> set[str]:
    """All names in code marks in the section of docs/api.md whose title begins so."""
    text = (ROOT / "docs" / "api.md").read_text()
    section = text.partition(f"## {title}")[2].partition("\n## ")[0]
    return set(re.findall(r"`([a-z_]+)`", section))
