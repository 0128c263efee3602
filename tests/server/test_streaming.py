from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.frontend.outputs import RequestDelta
from engine.server.streaming import EventWriter, TextOutlet
from tests.server.fake_core import FakeCore
from tests.server.serving import Served, serving

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
TEXT: dict[str, Any] = {"prompt": "Hi", "max_tokens": 40}

REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", CHAT),
    "chat with counts": (
        "/v1/chat/completions",
        CHAT | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ),
    "samples": ("/v1/chat/completions", CHAT | {"n": 3}),
    "stop string": ("/v1/chat/completions", CHAT | {"stop": ["France", "ance. "]}),
    "log probabilities": ("/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 3}),
    "token ids": ("/v1/chat/completions", CHAT | {"return_token_ids": True}),
    "text": ("/v1/completions", TEXT | {"logprobs": 2}),
    "echo": ("/v1/completions", TEXT | {"echo": True, "prompt": ["ab", "cd"]}),
    "responses": ("/v1/responses", {"input": "Hi"}),
    "messages": ("/v1/messages", CHAT | {"max_tokens": 40}),
}


@pytest.fixture
async def over_sockets(tiny_folder: Path, answer_ids: list[int]) -> AsyncGenerator[Served, None]:
    async with serving(tiny_folder, FakeCore(answer_ids)) as running:
        yield running


def _by_choice(text: str) -> dict[int, list[str]]:
    """Events of each choice, without what differs between two requests."""
    text = re.sub(r'"(id|item_id|created|created_at|completed_at)":("[^"]*"|[0-9.]+)', "", text)
    found: dict[int, list[str]] = {}
    for event in text.split("\n\n"):
        index = re.search(r'"choices":\[\{"index":(\d+)', event)
        found.setdefault(int(index[1]) if index else 0, []).append(event)
    return found


@pytest.mark.parametrize("name", REQUESTS)
async def test_what_is_written_at_once_is_what_the_task_would_send(
    name: str, served: Served, over_sockets: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, body = REQUESTS[name]
    taken: list[str] = []
    take, take_text = EventWriter.take, TextOutlet.take

    def noting(self: EventWriter, index: int, output: RequestDelta) -> None:
        taken.append(output.text)
        take(self, index, output)

    def noting_text(self: TextOutlet, text: str, num_tokens: int) -> bool:
        taken.append(text)
        return take_text(self, text, num_tokens)

    monkeypatch.setattr(EventWriter, "take", noting)
    monkeypatch.setattr(TextOutlet, "take", noting_text)
    by_task = await served.http.post(path, json=body | {"stream": True})
    assert not taken  # there is no connection
    at_once = await over_sockets.http.post(path, json=body | {"stream": True})
    assert len(taken) > 5
    assert (at_once.status_code, at_once.headers["content-type"]) == (
        200,
        by_task.headers["content-type"],
    )
    assert _by_choice(at_once.text) == _by_choice(by_task.text)


@pytest.mark.parametrize(
    ("kind", "more"), [(TextOutlet, {}), (EventWriter, {"return_token_ids": True})]
)
async def test_outputs_that_fail_to_be_written_end_their_stream_alone(
    kind: type,
    more: dict[str, Any],
    over_sockets: Served,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def failing(*_: object) -> None:
        raise ZeroDivisionError

    body = CHAT | {"stream": True, "ignore_eos": True, "max_tokens": 300} | more
    with monkeypatch.context() as patch:
        patch.setattr(kind, "take", failing)
        with pytest.raises(httpx.RemoteProtocolError):
            await over_sockets.http.post("/v1/chat/completions", json=body)
    assert "ZeroDivisionError" in caplog.text
    answer = await over_sockets.http.post("/v1/chat/completions", json=CHAT)
    assert json.loads(answer.text)["choices"][0]["finish_reason"] == "stop"
