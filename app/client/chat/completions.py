"""Streamed completions of raw prompts: no chat template, the model goes on where the text ends."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING

from app.client.chat.stream import ChatDelta, read_usage
from app.client.sse import post_events
from app.client.terminal_text import clean_word
from app.client.transport import STREAM_TIMEOUT_S

if TYPE_CHECKING:
    import httpx


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
    """Yield the continuation of `prompt`; a parameter that is None is left to the server."""
    body = {
        "model": model,
        "prompt": prompt,
        "stream": True,
        "stream_options": {"include_usage": True},
        **{name: value for name, value in params.items() if value is not None},
    }
    events = post_events(
        base_url,
        "/v1/completions",
        body,
        api_key=api_key,
        timeout_s=timeout_s,
        transport=transport,
    )
    with contextlib.closing(events):
        for event in events:
            choice = (event.get("choices") or [{}])[0]
            yield ChatDelta(
                text=choice.get("text") or "",
                finish_reason=clean_word(choice.get("finish_reason")),
                usage=read_usage(event),
            )
