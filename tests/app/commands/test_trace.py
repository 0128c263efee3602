"""`stoker trace` against a small HTTP server: with the engine's times, without, and refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from app.cli import run
from tests.client.debug.trace_document import DOCUMENT
from tests.client.local_server import Answer, LocalServer, serving

CHAT, MODELS = "/v1/chat/completions", "/v1/models"
TRACE = "/debug/requests/chatcmpl-1-0/trace"
EVENTS = (
    {"id": "chatcmpl-1", "choices": [{"delta": {"role": "assistant", "content": ""}}]},
    {"id": "chatcmpl-1", "choices": [{"delta": {"content": "Hel"}}]},
    {"id": "chatcmpl-1", "choices": [{"delta": {"content": "lo\x1b[2J"}, "finish_reason": "stop"}]},
    {"id": "chatcmpl-1", "choices": [], "usage": {"prompt_tokens": 32, "completion_tokens": 3}},
)


def stream(*events: object) -> Answer:
    chunks = [f"data: {json.dumps(event)}\n\n".encode() for event in events]
    return Answer([*chunks, b"data: [DONE]\n\n"], content_type="text/event-stream")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalServer]:
    for name in ("STOKER_URL", "STOKER_API_KEY", "VLLM_API_KEY", "STOKER_API_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    models = {"data": [{"id": "smol", "owned_by": "stoker"}]}
    routes = {
        MODELS: lambda _call: Answer([json.dumps(models).encode()]),
        CHAT: lambda _call: stream(*EVENTS),
        TRACE: lambda _call: Answer([json.dumps(DOCUMENT).encode()]),
    }
    with serving(routes) as local:
        yield local


def test_walk_as_text(server: LocalServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "Say hello", server.url]) == 0
    out = capsys.readouterr().out
    assert "32 prompt tokens, 3 generated, finish_reason = stop" in out
    for stage in ("connected", "request sent", "response headers", "first text", "end"):
        assert stage in out
    row = next(line for line in out.splitlines() if line.startswith(" 9 "))
    assert row.split()[:8] == ["9", "Worker", "11.00", "ms", "45.00", "ms", "10.00", "ms"]
    assert "kv_cache_manager.py (part of hop 7)" in out
    assert "status: WAITING -> RUNNING -> FINISHED_STOPPED" in out
    assert "prefix cache: 24 tokens as before; from token 25 on the text is another one" in out
    assert "answer: Hello" in out
    assert "\x1b" not in out
    chat = next(call for call in server.calls if call.path == CHAT)
    asked = json.loads(chat.body)
    assert (asked["model"], asked["max_tokens"], asked["stream"]) == ("smol", 32, True)


def test_json_document(server: LocalServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "Say hello", server.url, "--json", "--max-tokens", "5"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["request_id"]) == ("stoker.trace", "chatcmpl-1")
    assert [hop["number"] for hop in document["hops"]] == list(range(1, 14))
    assert document["hops"][8]["duration_s"] == 0.045
    assert document["hops"][7]["duration_s"] == 0.0004
    assert document["prefix_miss"] == {
        "cause": "other_text",
        "matched_tokens": 24,
        "lost_tokens": 8,
    }
    assert document["reason"] is None
    assert len(document["client_gaps_s"]) == 1
    times = document["client_times_s"]
    assert 0 < times["connected"] <= times["request sent"] <= times["first text"] <= times["end"]


def test_server_that_keeps_no_times(
    server: LocalServer, capsys: pytest.CaptureFixture[str]
) -> None:
    del server.routes[TRACE]
    assert run(["trace", "x", server.url, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["reason"] == "start the server with --enable-debug-endpoints"
    assert {hop["duration_s"] for hop in document["hops"]} == {None}
    assert document["client_times_s"]["first text"] > 0


def test_other_engine(server: LocalServer, capsys: pytest.CaptureFixture[str]) -> None:
    del server.routes[TRACE]
    models = json.dumps({"data": [{"id": "m", "owned_by": "vllm"}]}).encode()
    server.routes[MODELS] = lambda _call: Answer([models])
    assert run(["trace", "x", server.url]) == 0
    out = capsys.readouterr().out
    assert out.count("not measured: this engine does not tell the times of a request") == 1


def test_prompt_from_stdin(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", __import__("io").StringIO("from a pipe"))
    assert run(["trace", "-", server.url]) == 0
    chat = next(call for call in server.calls if call.path == CHAT)
    assert json.loads(chat.body)["messages"][0]["content"] == "from a pipe"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (stream(*EVENTS[:2]), "ended in the middle"),
        (stream(EVENTS[0], {"error": {"message": "engine is dead"}}), "engine is dead"),
        (Answer([b'{"error":{"message":"too long"}}'], 400), "too long"),
    ],
)
def test_broken_answers(
    server: LocalServer, answer: Answer, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.routes[CHAT] = lambda _call: answer
    assert run(["trace", "x", server.url]) == 1
    assert words in capsys.readouterr().err


def test_no_server_and_no_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "x", "http://127.0.0.1:9"]) == 4
    assert "start one with `stoker serve`" in capsys.readouterr().err
    assert run(["trace", "  "]) == 2
    assert run(["trace", "x", "ftp://host"]) == 2
