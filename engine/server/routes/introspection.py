"""Endpoints beside generation: health, version, load, models, the tokenizer, the cache's reset."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from engine.errors import RequestError
from engine.frontend.tokenizer import Tokenizer
from engine.lora_adapters import LoraRequest
from engine.server.errors import ApiError
from engine.server.prompts import MAX_UNBOUND_CHARS, decode, encode
from engine.server.protocol import ChatBody, DetokenizeBody, TokenizeBody
from engine.server.routes.chat import render_chat
from engine.server.state import ApiState, ServerPhase, Services
from engine.server.streaming import encode_json
from engine.server.tools import template_tools
from engine.version import __version__

_SLICE_TOKENS = 16_384


def json_response(value: object, status: int = 200) -> Response:
    return Response(encode_json(value), status_code=status, media_type="application/json")


def health(state: ApiState) -> Response:
    """200 with an empty body when requests are served, else 503 and the phase."""
    if state.phase is ServerPhase.READY:
        return Response(status_code=200)
    return json_response({"status": state.phase.value}, 503)


def version() -> Response:
    return json_response({"version": __version__})


def root() -> Response:
    """What answers here, for clients that try the address first."""
    return json_response({"name": "stoker", "version": __version__, "openapi": "/openapi.json"})


async def load(state: ApiState, request: Request) -> Response:
    """Requests that wait for their answers, on all API servers."""
    others = await state.peers.documents(request)
    elsewhere = sum(document["server_load"] for document in others)
    return json_response({"server_load": state.num_unfinished + elsewhere})


def models(services: Services) -> Response:
    """The model served and its LoRA adapters, as OpenAI lists models."""
    adapters = services.loras.adapters if services.loras else []
    cards = [_model_card(services), *(_model_card(services, one) for one in adapters)]
    return json_response({"object": "list", "data": cards})


def model(services: Services, name: str) -> Response:
    """The entry of one model; 404 for any other name."""
    return json_response(_model_card(services, services.adapter_of(name)))


def _model_card(services: Services, adapter: LoraRequest | None = None) -> dict[str, object]:
    return {
        "id": services.model_name if adapter is None else adapter.name,
        "object": "model",
        "created": services.created,
        "owned_by": "stoker",
        "root": services.root if adapter is None else adapter.path,
        "parent": None if adapter is None else services.model_name,
        "max_model_len": services.llm.input_processor.max_model_len,
        "permission": [],
    }


async def tokenize(services: Services, body: TokenizeBody) -> Response:
    """Token ids of a text, or of a chat after its template."""
    services.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("Give either `prompt` or `messages`.", param="prompt")
    if body.messages is None:
        adds_special = body.add_special_tokens is not False
        token_ids = await _token_ids(services, body.prompt or "", "prompt", adds_special)
    else:
        token_ids = await chat_token_ids(services, body)
    return json_response(
        {
            "count": len(token_ids),
            "max_model_len": services.llm.input_processor.max_model_len,
            "tokens": token_ids,
            "token_strs": await _token_strings(services.llm.tokenizer, token_ids)
            if body.return_token_strs
            else None,
        }
    )


async def chat_token_ids(services: Services, body: TokenizeBody | ChatBody) -> list[int]:
    """Token ids of a body's messages after the chat template; images are counted, not read."""
    num_images = len(services.images.urls(body.messages or [], "messages"))
    text = await services.rendering.run(
        lambda: render_chat(services, body, template_tools(body.tools), num_images, "messages")
    )
    # Chat templates write the special tokens themselves.
    return await _token_ids(services, text, "messages", body.add_special_tokens is True)


async def _token_ids(services: Services, text: str, param: str, adds_special: bool) -> list[int]:
    return await encode(
        services.llm,
        text,
        add_special_tokens=adds_special,
        param=param,
        at_least=MAX_UNBOUND_CHARS,
    )


async def _token_strings(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[str]:
    found: list[str] = []
    for start in range(0, len(token_ids), _SLICE_TOKENS):
        found += tokenizer.token_strings(token_ids[start : start + _SLICE_TOKENS])
        await asyncio.sleep(0)
    return found


def tokenizer_info(services: Services) -> Response:
    """The model's tokenizer_config.json, with the class and the chat template that are in use."""
    return json_response(dict(services.tokenizer_info))


async def reset_prefix_cache(services: Services) -> Response:
    """Forget all cached prefixes; 409 while requests hold blocks."""
    if await services.llm.reset_prefix_cache():
        return json_response({"success": True})
    raise ApiError(
        409,
        "The prefix cache cannot be reset while requests use its blocks "
        f"({services.llm.num_unfinished} in flight); try again once they are done.",
        code="cache_in_use",
    )


async def detokenize(services: Services, body: DetokenizeBody) -> Response:
    """Text of token ids, special tokens included."""
    services.check_model(body.model)
    services.llm.input_processor.check_token_ids(body.tokens, "tokens")
    return json_response({"prompt": await decode(services.llm.tokenizer, body.tokens)})
