from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from app.client.chat.stream import ChatDelta, Usage, stream_chat, stream_completion
from app.client.errors import BadAnswer, BadStatus, Unreachable
from tests.client.chat_server import DONE, ChatServer, event, usage
from tests.client.local_server import Answer, serving

MESSAGES = [{"role": "user", "content": "hi"}]


def text_event(text: str, finish_reason: str | None = None) -> bytes:
    return event(choices=[{"delta": {"content": text}, "finish_reason": finish_reason}])


USAGE = event(choices=[], usage={"prompt_tokens": 5, "completion_tokens": 2})


def transport(body: bytes, status: int = 200) -> httpx.MockTransport:
    return httpx.MockTransport(lambda _request: httpx.Response(status, content=body))


def chat(body: bytes, status: int = 200) -> list[ChatDelta]:
    stream = stream_chat("http://h", MESSAGES, model="m", transport=transport(body, status))
    return list(stream)


def test_deltas_finish_reason_and_usage() -> None:
    deltas = chat(text_event("He") + text_event("llo", "stop") + USAGE + DONE)
    assert "".join(delta.text for delta in deltas) == "Hello"
    assert deltas[1].finish_reason == "stop"
    assert deltas[2].usage == Usage(5, 2)


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_is_kept_apart(field: str) -> None:
    (delta,) = chat(event(choices=[{"delta": {field: "hm", "content": None}}]) + DONE)
    assert delta == ChatDelta(reasoning="hm")


@pytest.mark.parametrize(
    "error", [{"error": {"message": "core died"}}, {"object": "error", "message": "core died"}]
)
def test_error_inside_the_stream(error: dict[str, Any]) -> None:
    with pytest.raises(BadAnswer, match="core died"):
        chat(text_event("He") + event(**error) + DONE)


def test_stream_that_stops_early() -> None:
    with pytest.raises(BadAnswer, match="middle of the answer"):
        chat(text_event("He"))


def test_stream_without_done_but_finished() -> None:
    assert len(chat(text_event("He", "stop"))) == 1


def test_events_that_are_no_objects() -> None:
    for data in (b"data: {nonsense\n\n", b"data: 3\n\n"):
        with pytest.raises(BadAnswer):
            chat(data)


def test_refused_request_shows_the_servers_reason() -> None:
    with pytest.raises(BadStatus, match="max_tokens is too large") as caught:
        chat(b'{"error":{"message":"max_tokens is too large"}}', 400)
    assert caught.value.status == 400


def test_request_body_over_a_real_connection() -> None:
    routes = {
        "/v1/models": lambda _call: Answer([b'{"data":[{"id":"first"},{"id":"second"}]}']),
        "/v1/chat/completions": lambda _call: Answer(
            [text_event("o"), text_event("k", "stop"), DONE], content_type="text/event-stream"
        ),
    }
    with serving(routes) as server:
        deltas = list(stream_chat(server.url, MESSAGES, api_key="k", temperature=0, seed=None))
    assert "".join(delta.text for delta in deltas) == "ok"
    assert [call.headers["Authorization"] for call in server.calls] == ["Bearer k"] * 2
    assert json.loads(server.calls[1].body) == {
        "model": "first",
        "messages": MESSAGES,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
    }


def test_nothing_listens() -> None:
    with serving({}) as server:
        url = server.url
    with pytest.raises(Unreachable):
        list(stream_chat(url, MESSAGES))


def test_completion_of_a_raw_prompt() -> None:
    events = [
        event(choices=[{"text": " upon"}]),
        event(choices=[{"text": " a", "finish_reason": "length"}]),
        usage(1, 2),
        DONE,
    ]
    with ChatServer([events]).running() as server:
        deltas = list(stream_completion(server.url, "Once", model="m", max_tokens=2, seed=None))
    assert "".join(delta.text for delta in deltas) == " upon a"
    assert deltas[1].finish_reason == "length"
    assert server.bodies == [
        {
            "model": "m",
            "prompt": "Once",
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 2,
        }
    ]
