"""Sends one streamed request and reads the clock at every stage; then asks the engine for its part.

Owns what the client side can see: connection, first byte, each event, the end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from app.client.debug.trace import Hop, Trace, read_trace, walk
from app.client.errors import (
    BadAnswer,
    BadStatus,
    ClientError,
    RequestForgotten,
    error_text,
    status_error,
)
from app.client.server import first_model
from app.client.sse import END_OF_STREAM, iter_events
from app.client.terminal_text import clean_word, strip_escapes
from app.client.transport import STREAM_TIMEOUT_S, connection_errors, open_client

if TYPE_CHECKING:
    import httpx

_STAGES = {
    "connection.connect_tcp.complete": "connected",
    "http11.send_request_body.complete": "request sent",
    "http11.receive_response_headers.complete": "response headers",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRequest:
    """One request as the client saw it (`times`, seconds since the call), and the engine's hops.

    `reason` says why the engine's part is missing; "" if it is there.
    """

    request_id: str | None
    text: str
    finish_reason: str | None
    prompt_tokens: int | None
    output_tokens: int | None
    times: Mapping[str, float]
    gaps_s: tuple[float, ...]
    trace: Trace | None
    reason: str

    @property
    def hops(self) -> tuple[Hop, ...]:
        return walk(self.trace, self.reason)


@dataclass(slots=True)
class _Seen:
    """Grows while the answer streams in."""

    zero_s: float = field(default_factory=time.monotonic)
    times: dict[str, float] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    text_times_s: list[float] = field(default_factory=list)
    answer_id: str | None = None
    finish_reason: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)

    def note(self, name: str) -> float:
        at_s = time.monotonic() - self.zero_s
        self.times.setdefault(name, at_s)
        return at_s

    def on_stage(self, name: str, _info: object) -> None:
        if name in _STAGES:
            self.note(_STAGES[name])

    def on_event(self, event: Mapping[str, Any]) -> None:
        at_s = self.note("first event")
        self.answer_id = self.answer_id or event.get("id")
        self.usage = event.get("usage") or self.usage
        choice = (event.get("choices") or [{}])[0]
        delta = choice.get("delta") or {}
        text = delta.get("content") or delta.get("reasoning_content") or ""
        self.finish_reason = clean_word(choice.get("finish_reason")) or self.finish_reason
        if text:
            self.note("first text")
            self.texts.append(text)
            self.text_times_s.append(at_s)


def trace_request(
    base_url: str,
    prompt: str,
    *,
    max_tokens: int,
    api_key: str | None = None,
    transport: httpx.BaseTransport | None = None,
) -> TracedRequest:
    """Run one chat request to its end; ClientError when it is refused or breaks off."""
    model = first_model(base_url, api_key=api_key, transport=transport)
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    client = open_client(base_url, api_key=api_key, timeout_s=STREAM_TIMEOUT_S, transport=transport)
    with connection_errors(base_url), client:
        seen = _run(client, body)
        trace, reason = _fetch_trace(client, seen.answer_id)
    times = seen.text_times_s
    return TracedRequest(
        request_id=strip_escapes(seen.answer_id) if seen.answer_id else None,
        text="".join(seen.texts),
        finish_reason=seen.finish_reason,
        prompt_tokens=_count(seen.usage, "prompt_tokens"),
        output_tokens=_count(seen.usage, "completion_tokens"),
        times=seen.times,
        gaps_s=tuple(later - earlier for earlier, later in pairwise(times)),
        trace=trace,
        reason=reason,
    )


def _run(client: httpx.Client, body: Mapping[str, object]) -> _Seen:
    seen = _Seen()
    with client.stream(
        "POST", "/v1/chat/completions", json=body, extensions={"trace": seen.on_stage}
    ) as response:
        if response.is_error:
            response.read()
            raise status_error(str(response.url), response.status_code, response.text)
        for event in _events(response):
            seen.on_event(event)
    seen.note("end")
    if seen.finish_reason is None:
        raise BadAnswer("the stream ended in the middle of the answer")
    return seen


def _events(response: httpx.Response) -> Iterator[Mapping[str, Any]]:
    for data in iter_events(response.iter_bytes()):
        if data.strip() == END_OF_STREAM:
            continue  # the end of the connection is read too
        try:
            event = json.loads(data)
        except ValueError as error:
            raise BadAnswer(f"the stream holds an event that is not JSON: {data[:80]!r}") from error
        if not isinstance(event, dict):
            raise BadAnswer(f"the stream holds an event that is no object: {data[:80]!r}")
        if event.get("error"):
            raise BadAnswer(f"the server broke the answer off: {error_text(data)}")
        yield event


def _fetch_trace(client: httpx.Client, answer_id: str | None) -> tuple[Trace | None, str]:
    """The engine's part, or why it cannot be had; the answer itself is there either way."""
    if answer_id is None:
        return None, "the answer carries no id"
    try:
        response = client.get(f"/debug/requests/{answer_id}-0/trace")
        if response.is_error:
            raise status_error(str(response.url), response.status_code, response.text)
        return read_trace(response.json()), ""
    except BadStatus as error:
        return None, _absence(client, error)
    except (ClientError, ValueError) as error:
        return None, str(error)


def _absence(client: httpx.Client, error: BadStatus) -> str:
    if error.status != 404 or isinstance(error, RequestForgotten):
        return error.detail or str(error)
    models = client.get("/v1/models")
    if models.is_success and '"owned_by":"stoker"' in models.text.replace(" ", ""):
        return "start the server with --enable-debug-endpoints"
    return "this engine does not tell the times of a request"


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    value = usage.get(name)
    return None if value is None else int(value)
