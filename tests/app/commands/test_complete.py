from __future__ import annotations

import io
import sys
from collections.abc import Iterator

import pytest

from app.cli import run
from tests.client.chat_server import DONE, ChatServer, event, usage
from tests.client.local_server import Answer, serving


@pytest.fixture
def server() -> Iterator[ChatServer]:
    events = [event(choices=[{"text": " upon <think>"}]), event(choices=[{"text": " a time"}])]
    with ChatServer([[*events, usage(1, 4), DONE]]).running() as running:
        yield running


def test_prompt_goes_raw_and_only_the_continuation_comes_back(
    server: ChatServer, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["Once", "-u", server.url, "-n", "4", "--top-p", "0.5", "--seed", "3", "--stop", "x"]
    assert run(["complete", *args]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (" upon <think> a time\n", "")
    (body,) = server.bodies
    assert {key: body[key] for key in ("prompt", "model", "max_tokens", "temperature")} == {
        "prompt": "Once",
        "model": "smol",
        "max_tokens": 4,
        "temperature": 0,
    }
    assert [body[key] for key in ("top_p", "seed", "stop")] == [0.5, 3, ["x"]]


def test_prompt_from_a_pipe_with_echo(
    server: ChatServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STOKER_URL", server.url)
    monkeypatch.setattr(sys, "stdin", io.StringIO(" Once\x1b[31m\n"))
    assert run(["complete", "--echo", "--temperature", "1"]) == 0
    assert capsys.readouterr().out == " Once upon <think> a time\n"
    assert server.bodies[0]["prompt"] == " Once\x1b[31m"
    assert "max_tokens" not in server.bodies[0]


def test_a_server_without_a_list_of_models(capsys: pytest.CaptureFixture[str]) -> None:
    events = [event(choices=[{"text": " upon"}]), DONE]
    with serving({"/v1/completions": lambda _call: Answer(events)}) as plain:
        assert run(["complete", "Once", "-u", plain.url]) == 1
        assert (
            "has no /v1/models: is it an OpenAI-compatible server? If it is, name a model"
            in capsys.readouterr().err
        )
        assert run(["complete", "Once", "-u", plain.url, "--model", "m"]) == 0
        assert capsys.readouterr().out == " upon\n"


def test_errors_and_exit_codes(
    server: ChatServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert run(["complete", "--url", server.url]) == 2
    assert "no prompt" in capsys.readouterr().err
    raw = io.TextIOWrapper(io.BytesIO(b"\xff"), errors="surrogateescape")
    monkeypatch.setattr(sys, "stdin", raw)
    assert run(["complete", "--url", server.url]) == 2
    assert "not text in UTF-8" in capsys.readouterr().err
    assert server.local is not None
    server.local.stop()
    assert run(["complete", "hi", "--url", server.url]) == 4
    assert "stoker serve" in capsys.readouterr().err
