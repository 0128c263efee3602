"""What a server can do for a coding agent: asked of it, since every engine tells it otherwise.

Costs it one short answer. Nothing is learnt from names and versions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from app.client.errors import error_text, status_error
from app.client.metrics.exposition import parse_exposition
from app.client.metrics.names import CACHE_CONFIG
from app.client.served_model import ServedModel, served_model
from app.client.terminal_text import strip_escapes
from app.client.transport import connection_errors, normalise_base_url, open_client

if TYPE_CHECKING:
    import httpx

_ANSWER_TIMEOUT_S = 120.0
_FEW_TOKENS = 8
_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "noop",
        "description": "Does nothing.",
        "parameters": {"type": "object", "properties": {}},
    },
}
_ABSENT = (404, 405, 501)
_THOUGHT = re.compile(r"<think>|\[THINK\]|◁think▷|<seed:think>|<\|channel\|?>")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAbilities:
    """`tools_refusal` is what the server says to a request with tools, None where it takes them.

    With `shows_thoughts` what the model thinks stands in its answers. `caches_prefixes` is None
    where the server does not tell.
    """

    url: str
    model: ServedModel
    tools_refusal: str | None
    has_messages: bool
    has_responses: bool
    needs_key: bool
    shows_thoughts: bool
    caches_prefixes: bool | None


def server_abilities(
    base_url: str,
    model: str | None = None,
    *,
    api_key: str | None = None,
    transport: httpx.BaseTransport | None = None,
) -> ServerAbilities:
    """Ask the server; ClientError where it does not answer, or not as a server of models does."""
    served = served_model(base_url, model, api_key=api_key, transport=transport)
    client = open_client(
        base_url, api_key=api_key, timeout_s=_ANSWER_TIMEOUT_S, transport=transport
    )
    with connection_errors(base_url), client:
        answer = _ask_with_tools(client, served.id)
        return ServerAbilities(
            url=normalise_base_url(base_url),
            model=served,
            tools_refusal=_refusal(answer),
            has_messages=_has_route(client, "/v1/messages"),
            has_responses=_has_route(client, "/v1/responses"),
            needs_key=_needs_key(client),
            shows_thoughts=_THOUGHT.search(_content(answer)) is not None,
            caches_prefixes=_caches_prefixes(client),
        )


def _ask_with_tools(client: httpx.Client, model: str) -> httpx.Response:
    return client.post(
        "/v1/chat/completions",
        json={
            "model": model,
            "messages": [{"role": "user", "content": "Hi"}],
            "tools": [_PROBE_TOOL],
            "max_tokens": _FEW_TOKENS,
        },
    )


def _refusal(answer: httpx.Response) -> str | None:
    """What is wrong with tools; a key that is refused or a server that loads is another matter."""
    if not answer.is_error:
        return None
    if answer.status_code in (401, 403, 404, 429, 503):
        raise status_error(str(answer.url), answer.status_code, answer.text)
    return strip_escapes(error_text(answer.text)).strip() or f"HTTP {answer.status_code}"


def _content(answer: httpx.Response) -> str:
    try:
        document: Any = answer.json()
        return str(document["choices"][0]["message"].get("content") or "")
    except (ValueError, LookupError, TypeError, AttributeError):
        return ""


def _has_route(client: httpx.Client, path: str) -> bool:
    """An empty request is refused by a route that is there, and found by none that is not."""
    return client.post(path, json={}).status_code not in _ABSENT


def _needs_key(client: httpx.Client) -> bool:
    return client.get("/v1/models", headers={"Authorization": ""}).status_code in (401, 403)


def _caches_prefixes(client: httpx.Client) -> bool | None:
    response = client.get("/metrics")
    configs = () if response.is_error else parse_exposition(response.text).get(CACHE_CONFIG)
    told = next((word for c in configs if (word := c.labels.get("enable_prefix_caching"))), None)
    return None if told is None else told.lower() == "true"
