"""Streamed chat completions: messages in, text deltas out. No terminal, no history."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from app.client.errors import BadAnswer, error_text, status_error
from app.client.server import first_model
from app.client.sse import iter_events
from app.client.transport import STREAM_TIMEOUT_S, connection_errors, open_client

if TYPE_CHECKING:
    import httpx

_END = "[DONE]"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one answer, as the server reports them."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class ChatDelta:
    """What one event adds. `reasoning` is thinking text that is not part of the answer."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    usage: Usage | None = None


def stream_chat(
    base_url: str,
    messages: Sequence[Mapping[str, str]],
    *,
    model: str | None = None,
    api_key: str | None = None,
    timeout_s: float = STREAM_TIMEOUT_S,
    transport: httpx.BaseTransport | None = None,
    **params: object,
) -> Generator[ChatDelta, None, None]:
    """Yield the answer to `messages` as it is generated; closing the iterator aborts the request.

    Without `model` the first model of the server answers. A parameter that is None is left to the
    server.
    """
    if model is None:
        model = first_model(base_url, api_key=api_key, transport=transport)
    body = {
        "model": model,
        "messages": [dict(message) for message in messages],
        "stream": True,
        "stream_options": {"include_usage": True},
        **{name: value for name, value in params.items() if value is not None},
    }
    client = open_client(base_url, api_key=api_key, timeout_s=timeout_s, transport=transport)
    with connection_errors(str(client.base_url).rstrip("/")), client:
        yield from _stream(client, body)


def _stream(client: httpx.Client, body: Mapping[str, object]) -> Iterator[ChatDelta]:
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.is_error:
            response.read()
            raise status_error(str(response.url), response.status_code, response.text)
        is_complete = False
        for data in iter_events(response.iter_bytes()):
            if data.strip() == _END:
                return
            delta = _delta(data)
            is_complete = is_complete or delta.finish_reason is not None
            yield delta
    if not is_complete:
        raise BadAnswer("the stream ended in the middle of the answer")


def _delta(data: str) -> ChatDelta:
    try:
        event = json.loads(data)
    except ValueError as error:
        raise BadAnswer(f"the stream holds an event that is not JSON: {data[:80]!r}") from error
    if not isinstance(event, dict):
        raise BadAnswer(f"the stream holds an event that is not an object: {data[:80]!r}")
    # Some servers send the error nested, others as a flat object with "object": "error".
    if event.get("error") or event.get("object") == "error":
        raise BadAnswer(f"the server broke the answer off: {error_text(data)}")
    return _from_event(event)


def _from_event(event: Mapping[str, Any]) -> ChatDelta:
    choices = event.get("choices") or [{}]
    choice = choices[0]
    part = choice.get("delta") or {}
    return ChatDelta(
        text=part.get("content") or "",
        reasoning=part.get("reasoning_content") or part.get("reasoning") or "",
        finish_reason=choice.get("finish_reason"),
        usage=_usage(event.get("usage")),
    )


def _usage(usage: Mapping[str, Any] | None) -> Usage | None:
    if not usage:
        return None
    return Usage(int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0))
