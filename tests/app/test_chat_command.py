from __future__ import annotations

import io
import json
import os
import pty
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from app.cli import run
from tests.client.local_server import Answer, Call, LocalServer, serving

VARIABLES = ("STOKER_URL", "STOKER_API_KEY", "VLLM_API_KEY", "STOKER_API_KEY_FILE")

# The child takes the pseudo-terminal as its own first, so that Ctrl-C typed there reaches it.
PROGRAM = """
import fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from app.cli import main
main()
"""


def chunk(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def sse(*texts: str, usage: bool = True) -> list[bytes]:
    events = [chunk(choices=[{"delta": {"content": text}}]) for text in texts]
    events.append(chunk(choices=[{"delta": {}, "finish_reason": "stop"}]))
    if usage:
        events.append(chunk(choices=[], usage={"prompt_tokens": 7, "completion_tokens": 3}))
    return [*events, b"data: [DONE]\n\n"]


@dataclass
class ChatServer:
    """Answers each chat request with the next of `answers`, the last one again and again."""

    answers: list[Answer] = field(
        default_factory=lambda: [Answer(sse("The capital is ", "Paris."))]
    )
    bodies: list[dict[str, object]] = field(default_factory=list)

    def chat(self, call: Call) -> Answer:
        self.bodies.append(json.loads(call.body))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def models(self, _call: Call) -> Answer:
        return Answer([b'{"data":[{"id":"smol"}]}'])


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def behaviour() -> ChatServer:
    return ChatServer()


@pytest.fixture
def server(behaviour: ChatServer) -> Iterator[LocalServer]:
    routes = {"/v1/chat/completions": behaviour.chat, "/v1/models": behaviour.models}
    with serving(routes) as local:
        yield local


def pipe(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_piped_question_gets_the_answer_alone(
    server: LocalServer,
    behaviour: ChatServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pipe(monkeypatch, "What is the capital of France?\n")
    assert run(["chat", server.url]) == 0
    captured = capsys.readouterr()
    assert captured.out == "The capital is Paris.\n"
    assert captured.err == ""
    (body,) = behaviour.bodies
    assert body["model"] == "smol"
    assert body["temperature"] == 0
    assert body["messages"] == [{"role": "user", "content": "What is the capital of France?"}]
    assert "max_tokens" not in body


def test_options_reach_the_server(server: LocalServer, behaviour: ChatServer) -> None:
    args = ["-m", "hi", "--model", "x", "--system", "Be brief.", "--max-tokens", "5"]
    assert run(["chat", server.url, *args, "--temperature", "0.7", "--seed", "3"]) == 0
    (body,) = behaviour.bodies
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
    ]
    assert [body[key] for key in ("model", "max_tokens", "temperature", "seed")] == ["x", 5, 0.7, 3]


def test_escape_sequences_of_the_model_do_not_reach_the_terminal(
    server: LocalServer, behaviour: ChatServer, capsys: pytest.CaptureFixture[str]
) -> None:
    behaviour.answers = [Answer(sse("red \x1b[3", "1mtext\x1b]0;title\x07 \ud83d", " end\n"))]
    assert run(["chat", server.url, "-m", "hi"]) == 0
    assert capsys.readouterr().out == "red text ? end\n"


def test_empty_input_is_a_usage_error(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe(monkeypatch, " \n")
    assert run(["chat", server.url]) == 2
    assert "no question" in capsys.readouterr().err
    assert server.calls == []


def test_unreachable_is_exit_4_with_what_to_start(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({}) as gone:
        url = gone.url
    assert run(["chat", url, "-m", "hi"]) == 4
    err = capsys.readouterr().err
    assert "connection refused" in err
    assert "stoker serve" in err


def test_missing_and_wrong_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    denied = Answer([b'{"error":{"message":"Unauthorized"}}'], 401)
    with serving({"/v1/models": lambda _call: denied}) as server:
        assert run(["chat", server.url, "-m", "hi"]) == 4
        assert "STOKER_API_KEY" in capsys.readouterr().err
        monkeypatch.setenv("VLLM_API_KEY", "sesame")
        assert run(["chat", server.url, "-m", "hi"]) == 4
        err = capsys.readouterr().err
        assert server.calls[-1].headers["Authorization"] == "Bearer sesame"
    assert "refused" in err
    assert "sesame" not in err


def test_error_in_the_stream_keeps_what_came(
    server: LocalServer, behaviour: ChatServer, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [*sse("The cap")[:1], chunk(error={"message": "EngineCore died"})]
    behaviour.answers = [Answer(events)]
    assert run(["chat", server.url, "-m", "hi"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "The cap\n"
    assert "EngineCore died" in captured.err


def test_refused_request_shows_the_reason(
    server: LocalServer, behaviour: ChatServer, capsys: pytest.CaptureFixture[str]
) -> None:
    behaviour.answers = [Answer([b'{"error":{"message":"prompt is too long"}}'], 400)]
    assert run(["chat", server.url, "-m", "hi"]) == 1
    assert "prompt is too long" in capsys.readouterr().err


class Terminal:
    """`stoker chat` on a pseudo-terminal."""

    def __init__(self, url: str) -> None:
        self.fd, child = pty.openpty()
        environment = {k: v for k, v in os.environ.items() if k not in VARIABLES}
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "chat", url],
            stdin=child,
            stdout=child,
            stderr=child,
            env={**environment, "TERM": "xterm"},
            start_new_session=True,
        )
        os.close(child)
        self.seen = ""

    def wait_for(self, text: str) -> None:
        """Read until `text` appears after what was waited for before."""
        while text not in self.seen:
            ready, _, _ = select.select([self.fd], [], [], 20)
            assert ready, f"{text!r} did not come; there was {self.seen!r}"
            self.seen += os.read(self.fd, 4096).decode(errors="replace")
        self.seen = self.seen.partition(text)[2]

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def close(self) -> int:
        code = self.process.wait(timeout=20)
        os.close(self.fd)
        return code


def test_conversation_in_a_terminal(server: LocalServer, behaviour: ChatServer) -> None:
    behaviour.answers = [Answer(sse("Hello!")), Answer(sse("Again.")), Answer(sse("New."))]
    terminal = Terminal(server.url)
    terminal.wait_for("smol at")
    terminal.wait_for("> ")
    terminal.type("first\n")
    terminal.wait_for("Hello!")
    terminal.wait_for("7 prompt + 3 tokens")
    terminal.wait_for("> ")
    terminal.type("second\n")
    terminal.wait_for("Again.")
    terminal.wait_for("> ")
    terminal.type("/reset\n")
    terminal.wait_for("forgotten")
    terminal.wait_for("> ")
    terminal.type("third\n")
    terminal.wait_for("New.")
    terminal.wait_for("> ")
    terminal.type("/exit\n")
    assert terminal.close() == 0
    conversations = [
        [turn["content"] for turn in body["messages"]]  # type: ignore[attr-defined]
        for body in behaviour.bodies
    ]
    assert conversations == [["first"], ["first", "Hello!", "second"], ["third"]]
    assert "temperature" not in behaviour.bodies[0]


def test_ctrl_c_cancels_the_answer_and_ctrl_d_leaves(
    server: LocalServer, behaviour: ChatServer
) -> None:
    may_go_on = threading.Event()

    def slow() -> Iterator[bytes]:
        yield sse("Once upon")[0]
        may_go_on.wait(20)
        yield from sse(" never")

    behaviour.answers = [Answer(slow()), Answer(sse("Fine."))]
    terminal = Terminal(server.url)
    terminal.wait_for("> ")
    terminal.type("story\n")
    terminal.wait_for("Once upon")
    terminal.type("\x03")
    terminal.wait_for("cancelled")
    may_go_on.set()
    terminal.wait_for("> ")
    terminal.type("go\n")
    terminal.wait_for("Fine.")
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.close() == 0
    assert [turn["content"] for turn in behaviour.bodies[1]["messages"]] == [  # type: ignore[attr-defined]
        "story",
        "Once upon",
        "go",
    ]
