"""Streamed answers: messages in, or a raw prompt that goes on where it ends; deltas out."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from app.client.server import first_model
from app.client.sse import post_events, post_events_async
from app.client.terminal_text import clean_word
from app.client.transport import STREAM_TIMEOUT_S

if TYPE_CHECKING:
    import httpx

_PATH = "/v1/chat/completions"
Message = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one answer, as the server reports them."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class ToolCallPiece:
    """A part of the tool call number `index`: its name once, its arguments bit by bit."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class ChatDelta:
    """What one event adds. `reasoning` is thinking text that is not part of the answer."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    usage: Usage | None = None
    tool_calls: tuple[ToolCallPiece, ...] = ()


def stream_chat(
    base_url: str,
    messages: Sequence[Message],
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
    events = post_events(
        base_url,
        _PATH,
        _body({"model": model, "messages": _sent(messages)}, params),
        api_key=api_key,
        timeout_s=timeout_s,
        transport=transport,
    )
    with contextlib.closing(events):
        for event in events:
            yield _delta(event)


async def stream_chat_async(
    base_url: str,
    messages: Sequence[Message],
    *,
    model: str,
    api_key: str | None = None,
    timeout_s: float = STREAM_TIMEOUT_S,
    transport: httpx.AsyncBaseTransport | None = None,
    **params: object,
) -> AsyncGenerator[ChatDelta, None]:
    """The asynchronous twin of `stream_chat`."""
    events = post_events_async(
        base_url,
        _PATH,
        _body({"model": model, "messages": _sent(messages)}, params),
        api_key=api_key,
        timeout_s=timeout_s,
        transport=transport,
    )
    async with contextlib.aclosing(events):
        async for event in events:
            yield _delta(event)


def stream_completion(
    base_url: str,
    prompt: str,
    *,
    model: str,
    api_key: str | None = None,
    timeout_s: float = STREAM_TIMEOUT_S,
    transport: httpx.BaseTransport | None = None,
    **params: object,
) -> Generator[ChatDelta, None, None]:
    """Yield the continuation of `prompt`, without a chat template."""
    events = post_events(
        base_url,
        "/v1/completions",
        _body({"model": model, "prompt": prompt}, params),
        api_key=api_key,
        timeout_s=timeout_s,
        transport=transport,
    )
    with contextlib.closing(events):
        for event in events:
            yield _delta(event)


def _sent(messages: Sequence[Message]) -> list[dict[str, object]]:
    return [dict(message) for message in messages]


def _body(asked: Mapping[str, object], params: Mapping[str, object]) -> dict[str, object]:
    return {
        **asked,
        "stream": True,
        "stream_options": {"include_usage": True},
        **{name: value for name, value in params.items() if value is not None},
    }


def _delta(event: Mapping[str, Any]) -> ChatDelta:
    choices = event.get("choices") or [{}]
    choice = choices[0]
    part = choice.get("delta") or {}
    return ChatDelta(
        text=part.get("content") or choice.get("text") or "",
        reasoning=part.get("reasoning_content") or part.get("reasoning") or "",
        finish_reason=clean_word(choice.get("finish_reason")),
        usage=_usage(event),
        tool_calls=tuple(_tool_call(piece) for piece in part.get("tool_calls") or ()),
    )


def _tool_call(piece: Mapping[str, Any]) -> ToolCallPiece:
    function = piece.get("function") or {}
    return ToolCallPiece(
        index=int(piece.get("index") or 0),
        id=clean_word(piece.get("id")) or "",
        name=clean_word(function.get("name")) or "",
        arguments=function.get("arguments") or "",
    )


def _usage(event: Mapping[str, Any]) -> Usage | None:
    """The token counts of an event that carries them."""
    usage = event.get("usage")
    if not usage:
        return None
    return Usage(int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0))
