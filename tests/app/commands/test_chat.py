from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from app.cli import run
from app.client.chat.conversations import ConversationStore
from app.paths import state_dir
from app.registry.server_registry import ServerRecord, open_registry
from engine.machine.processes import process_identity
from tests.client.local_server import Answer, Call, LocalServer, serving
from tests.fakes.terminal import VARIABLES, Terminal


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


@pytest.fixture
def open_terminal() -> Iterator[Callable[..., Terminal]]:
    """Start `stoker chat` with arguments; whatever a failed test leaves is ended."""
    opened: list[Terminal] = []

    def start(*args: str) -> Terminal:
        opened.append(Terminal("chat", *args))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.process.kill()
        terminal.process.wait()


def test_conversation_in_a_terminal(
    server: LocalServer, behaviour: ChatServer, open_terminal: Callable[..., Terminal]
) -> None:
    behaviour.answers = [Answer(sse("Hello!")), Answer(sse("Again.")), Answer(sse("New."))]
    terminal = open_terminal(server.url, "--line")
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
    server: LocalServer, behaviour: ChatServer, open_terminal: Callable[..., Terminal]
) -> None:
    may_go_on = threading.Event()

    def slow() -> Iterator[bytes]:
        yield sse("Once upon")[0]
        may_go_on.wait(300)
        yield from sse(" never")

    behaviour.answers = [Answer(slow()), Answer(sse("Fine."))]
    terminal = open_terminal(server.url, "--line")
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


def test_prompt_and_pipe_together(
    server: LocalServer,
    behaviour: ChatServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("STOKER_URL", server.url)
    pipe(monkeypatch, "- old\n+ new\n")
    assert run(["chat", "review"]) == 0
    assert capsys.readouterr().out == "The capital is Paris.\n"
    pipe(monkeypatch, "")
    assert run(["chat", server.url, "just this"]) == 0
    pipe(monkeypatch, "piped")
    assert run(["chat", "-"]) == 0
    texts = [body["messages"][0]["content"] for body in behaviour.bodies]  # type: ignore[index]
    assert texts == ["review\n\n- old\n+ new", "just this", "piped"]


def test_reasoning_and_cut_off_answers(
    server: LocalServer, behaviour: ChatServer, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [
        chunk(choices=[{"delta": {"reasoning_content": "hm"}}]),
        chunk(choices=[{"delta": {"content": "Pa"}, "finish_reason": "length"}]),
    ]
    behaviour.answers = [Answer(events)]
    assert run(["chat", server.url, "-m", "hi"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "Pa\n"
    assert "cut off at the token limit" in captured.err


def test_server_lost_in_the_middle_is_an_error_and_keeps_the_part(
    server: LocalServer, behaviour: ChatServer, capsys: pytest.CaptureFixture[str]
) -> None:
    behaviour.answers = [Answer(sse("The cap")[:1])]
    assert run(["chat", server.url, "-m", "hi"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "The cap\n"
    assert "middle of the answer" in captured.err


def test_files_tools_and_formats_reach_the_server(
    server: LocalServer,
    behaviour: ChatServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    (tmp_path / "tools.json").write_text(json.dumps([tool]))
    (tmp_path / "schema.json").write_text('{"type": "object"}')
    (tmp_path / "notes.txt").write_text("milk")
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
    behaviour.answers = [
        Answer([chunk(choices=[{"delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}])])
    ]
    files = ["--tools", f"{tmp_path}/tools.json", "--attach", f"{tmp_path}/notes.txt"]
    schema = ["--json-schema", f"{tmp_path}/schema.json"]
    assert run(["chat", server.url, "-m", "hi", *files, *schema]) == 0
    assert capsys.readouterr().out == "f({})\n"
    (body,) = behaviour.bodies
    assert body["tools"] == [tool]
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {"type": "object"}},
    }
    assert "milk" in str(body["messages"])


def test_an_image_goes_along_and_what_is_none_is_refused_before_anything_is_sent(
    server: LocalServer,
    behaviour: ChatServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (tmp_path / "b.jpg").write_text("no image")
    (tmp_path / "c.txt").write_text("milk")
    files = [f"--attach={tmp_path / name}" for name in ("a.png", "c.txt")]
    assert run(["chat", server.url, "-m", "hi", *files]) == 0
    (body,) = behaviour.bodies
    (message,) = json.loads(json.dumps(body["messages"]))
    image, text = message["content"]
    assert image["image_url"]["url"] == "data:image/png;base64,iVBORw0KGgo="
    assert text["text"].startswith('hi\n\nFile "c.txt"')
    capsys.readouterr()
    assert run(["chat", server.url, "-m", "hi", "--attach", f"{tmp_path}/b.jpg"]) == 2
    assert "b.jpg is no image" in capsys.readouterr().err
    assert len(behaviour.bodies) == 1


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--tools", "/none"], "cannot use the tools in /none"),
        (["--json-schema", "/none"], "cannot use /none as a JSON schema"),
        (["--attach", "/none"], "cannot read /none"),
        (["a", "b", "c"], "4 arguments"),
    ],
)
def test_wrong_options_are_usage_errors(
    server: LocalServer, args: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["chat", server.url, *args, "-m", "hi"]) == 2
    assert said in capsys.readouterr().err


def test_name_of_a_managed_server(
    server: LocalServer, behaviour: ChatServer, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = psutil.Process()
    record = ServerRecord(
        name="tiny",
        pid=mine.pid,
        create_time=mine.create_time(),
        identity=process_identity(mine.pid),
        supervisor_pid=mine.pid,
        url=server.url,
        model="smol",
        engine="stoker",
        log_path="",
    )
    open_registry().add(record)
    assert run(["chat", "tiny", "-m", "hi"]) == 0
    assert run(["complete", "hi", "--url", "tiny"]) == 1  # this server has no such endpoint
    assert "404" in capsys.readouterr().err


def test_mistyped_name_in_a_terminal_asks_nobody(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin = io.StringIO()
    monkeypatch.setattr(stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", stdin)
    assert run(["chat", "tinny"]) == 4
    err = capsys.readouterr().err
    assert "no server is called tinny" in err
    assert "stoker chat -m tinny" in err


def test_line_mode_commands_and_saved_conversations(
    server: LocalServer,
    behaviour: ChatServer,
    tmp_path: Path,
    open_terminal: Callable[..., Terminal],
) -> None:
    behaviour.answers = [Answer(sse("One.")), Answer(sse("Two.")), Answer(sse("Three."))]
    terminal = open_terminal(server.url, "--no-tui")
    for typed, seen in [
        ("/help\n", "/export [FILE]"),
        ("first\n", "One."),
        ("/set seed 3\n", "seed 3"),
        ("/nonsense\n", "no command /nonsense"),
        ("/again\n", "Two."),
        ("/edit other\n", "Three."),
        (f"/export {tmp_path}/a.md\n", "written to"),
        ("/copy\n", "\x1b]52;c;VGhyZWUu\x07"),
        ("/list THREE\n", "1  other"),
    ]:
        terminal.wait_for("> ")
        terminal.type(typed)
        terminal.wait_for(seen)
    terminal.wait_for("> ")
    terminal.type("/quit\n")
    assert terminal.close() == 0
    assert "Three." in (tmp_path / "a.md").read_text()
    assert [body.get("seed") for body in behaviour.bodies] == [None, 3, 3]
    terminal = open_terminal(server.url, "--line", "--continue")
    terminal.wait_for("> ")
    terminal.type(f"/export {tmp_path}/b.md\n")
    terminal.wait_for("written to")
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.close() == 0
    assert (tmp_path / "b.md").read_text() == (tmp_path / "a.md").read_text()


def test_conversations_that_cannot_be_kept_are_told_of_once(
    server: LocalServer, behaviour: ChatServer, open_terminal: Callable[..., Terminal]
) -> None:
    (state_dir() / "conversations.sqlite3").write_text("no database\n" * 100)
    behaviour.answers = [Answer(sse("One.")), Answer(sse("Two."))]
    terminal = open_terminal(server.url, "--line")
    for typed, seen in [("first\n", "One."), ("second\n", "Two.")]:
        terminal.wait_for("> ")
        terminal.type(typed)
        terminal.wait_for(seen)
    terminal.wait_for("> ")
    terminal.type("/quit\n")
    assert terminal.close() == 0
    assert terminal.printed.count("warning: ") == 1


@pytest.mark.parametrize("way", ["key", "signal"])
def test_screen_gives_the_terminal_back_and_keeps_the_part(
    server: LocalServer,
    behaviour: ChatServer,
    way: str,
    open_terminal: Callable[..., Terminal],
) -> None:
    may_go_on = threading.Event()

    def slow() -> Iterator[bytes]:
        yield sse("Once upon")[0]
        may_go_on.wait(300)

    behaviour.answers = [Answer(slow())]
    terminal = open_terminal(server.url)
    terminal.wait_for("\x1b[?1049h")
    terminal.wait_for("commands")
    terminal.type("story\r")
    terminal.wait_for("upon")
    if way == "key":
        terminal.type("\x1b[21~")
    else:
        os.kill(terminal.process.pid, signal.SIGTERM)
    terminal.wait_for("\x1b[?1049l")
    may_go_on.set()
    modes = termios.tcgetattr(terminal.fd)[3]
    assert terminal.close() == (0 if way == "key" else 143)
    assert (modes ^ terminal.modes_before) & (termios.ECHO | termios.ICANON) == 0
    with contextlib.closing(ConversationStore(state_dir() / "conversations.sqlite3")) as store:
        assert [turn.text for turn in store.load(1).turns] == ["story", "Once upon"]
