"""Every command that takes a server finds it by the same words."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.cli import run
from app.errors import ExitCode
from app.registry.server_registry import ServerRecord, open_registry
from app.registry.states import ServerState
from app.supervise.server_state import describe, describe_address
from engine.machine.processes import process_identity
from tests.client.chat_server import DONE, answer, event, usage
from tests.client.local_server import Answer, LocalServer, serving

METRICS = b'vllm:num_requests_running{model_name="smol",engine="0"} 3\n'
ANSWERED = [event(choices=[{"text": "Hi", "finish_reason": "length"}]), usage(1, 1), DONE]
CARDS = json.dumps({"data": [{"id": "smol", "max_model_len": 4096}]}).encode()
ROUTES: dict[str, Callable[..., Answer]] = {
    "/metrics": lambda _call: Answer([METRICS]),
    "/health": lambda _call: Answer([b""]),
    "/v1/models": lambda _call: Answer([CARDS], content_type="application/json"),
    "/v1/completions": lambda _call: Answer(ANSWERED, content_type="text/event-stream"),
    "/v1/chat/completions": lambda _call: Answer(answer("Hi"), content_type="text/event-stream"),
}

# What each command prints of the server that it found; {name} and {url} are the server's.
_BENCH = ("--concurrency", "1", "--num-prompts", "1", "--repeat", "1", "--warmup", "0", "--json")
ASKING: dict[str, tuple[list[str], str]] = {
    "chat": (["chat", "WORD", "-m", "hi"], "Hi\n"),
    "complete": (["complete", "WORD", "once upon"], "Hi\n"),
    "trace": (["trace", "WORD", "once upon", "--json"], '"url": "{url}"'),
    "bench": (["bench", "WORD", *_BENCH], '"url": "{url}"'),
    "top": (["top", "WORD", "--json"], '"url": "{url}"'),
    "status": (["status", "WORD", "--json"], '"url": "{url}"'),
}
OURS: dict[str, tuple[list[str], str]] = {
    "stop": (["stop", "WORD", "--dry-run"], "would stop {name}"),
    "restart": (["restart", "WORD"], "how {name} was started is not known"),
    "attach": (["attach", "WORD"], "stoker top {url} --once"),
    "logs": (["logs", "WORD", "--json"], '"outcome"'),
}
COMMANDS = {**ASKING, **OURS}
FORMS = ("nothing", "STOKER_URL", "name", "pid", ":port", "port", "host:port", "localhost", "URL")


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with serving(ROUTES) as local:
        yield local


def record(url: str, log: Path, **changes: Any) -> ServerRecord:
    """As `stoker serve` writes it; this process stands for the server."""
    me = psutil.Process()
    log.write_text("INFO 10-03 12:00:00 [core.py:1] nothing yet\n")
    made = ServerRecord(
        name="tiny", pid=me.pid, create_time=me.create_time(), supervisor_pid=me.pid,
        identity=process_identity(me.pid), supervisor_identity=process_identity(me.pid),
        url=url, model="smol", engine="vllm",
        log_path=str(log), state="ready",
    )  # fmt: skip
    return replace(made, **changes)


def word_for(form: str, server: LocalServer) -> str | None:
    return {
        "name": "tiny",
        "pid": str(os.getpid()),
        ":port": f":{server.port}",
        "port": str(server.port),
        "host:port": f"127.0.0.1:{server.port}",
        "localhost": f"localhost:{server.port}",
        "URL": f"{server.url}/v1",
    }.get(form)


def typed(words: list[str], word: str | None) -> list[str]:
    return [part for part in (word if part == "WORD" else part for part in words) if part]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_every_form(
    command: str,
    form: str,
    server: LocalServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    open_registry().add(record(server.url, tmp_path / "tiny.log"))
    if form == "STOKER_URL":
        monkeypatch.setenv("STOKER_URL", f":{server.port}")
    words, shown = COMMANDS[command]
    word = word_for(form, server)
    if command == "logs" and word is None:
        pytest.skip("without a word it reads standard input; at a terminal see below")

    run(typed(words, word))
    captured = capsys.readouterr()
    assert shown.format(name="tiny", url=server.url) in captured.out + captured.err


@pytest.mark.parametrize("command", ASKING)
def test_what_runs_elsewhere_is_found_by_its_address(
    command: str, server: LocalServer, capsys: pytest.CaptureFixture[str]
) -> None:
    words, shown = ASKING[command]
    run(typed(words, server.url))
    assert shown.format(url=server.url) in capsys.readouterr().out


@pytest.mark.parametrize("command", OURS)
def test_what_another_started_is_not_ended_or_read_here(
    command: str, server: LocalServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(typed(OURS[command][0], server.url)) in (ExitCode.UNREACHABLE, ExitCode.USAGE)
    said = capsys.readouterr().err
    assert f"{server.url} is no server that `stoker serve` runs on this machine" in said
    assert f"stoker top {server.url}" in said


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("top", "logs")])
def test_of_several_one_must_be_named(
    command: str, server: LocalServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_registry().add(record(server.url, tmp_path / "a.log"))
    open_registry().add(record("http://127.0.0.1:9", tmp_path / "b.log", name="big"))

    assert run(typed(COMMANDS[command][0], None)) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "several servers run; name one" in said
    assert f"big (http://127.0.0.1:9), tiny ({server.url})" in said


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "logs"])
def test_without_any_the_error_says_what_to_type(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving({}) as gone:
        port = gone.port
    monkeypatch.setattr("app.client.transport.DEFAULT_URL", f"http://127.0.0.1:{port}")
    assert run(typed(COMMANDS[command][0], None)) == ExitCode.UNREACHABLE
    assert "start one with `stoker serve`" in capsys.readouterr().err


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "logs"])
def test_a_wrong_name_is_answered_with_the_near_one(
    command: str, server: LocalServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_registry().add(record(server.url, tmp_path / "tiny.log"))
    words = typed(COMMANDS[command][0], "tinny")
    assert run(words) == ExitCode.UNREACHABLE
    said = capsys.readouterr().err
    assert "no server is called tinny" in said
    assert "did you mean tiny?" in said


def test_the_document_of_a_foreign_server_has_the_same_keys(
    server: LocalServer, tmp_path: Path
) -> None:
    state, document = describe_address(server.url, None)
    assert (state.name, document["model"]) == ("ready", "smol")
    assert list(document) == list(describe(record(server.url, tmp_path / "tiny.log")))


def test_status_says_what_is_worth_a_look(capsys: pytest.CaptureFixture[str]) -> None:
    full = METRICS + (
        b'vllm:kv_cache_usage_perc{engine="0"} 0.98\nvllm:num_requests_waiting{engine="0"} 25\n'
    )
    with serving({**ROUTES, "/metrics": lambda _call: Answer([full])}) as busy:
        assert run(["status", busy.url]) == 0
    shown = capsys.readouterr().out
    assert "load        3 running, 25 waiting, KV cache 98.0 %" in shown
    assert "✖ KV cache 98.0 % (alarm from 97.0 %)" in shown
    assert "✖ waiting 25 (alarm from 20)" in shown


def test_a_foreign_server_that_is_not_there_or_still_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving({"/health": lambda _call: Answer([b"starting"], 503)}) as starting:
        assert run(["status", starting.url]) == ExitCode.NO
        assert f"{starting.url}: starting" in capsys.readouterr().out
    assert run(["status", starting.url]) == ExitCode.UNREACHABLE
    with serving({}) as other:
        assert run(["status", other.url]) == ExitCode.NO
    assert "has no /v1/models" in capsys.readouterr().err


def test_nobody_answers_there_but_others_run(
    server: LocalServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_registry().add(record(server.url, tmp_path / "tiny.log"))
    with serving({}) as gone:
        url = gone.url
    assert run(["chat", url, "-m", "hi"]) == ExitCode.UNREACHABLE
    assert f"servers: tiny ({server.url})" in capsys.readouterr().err


def test_a_server_of_ours_that_does_not_answer_is_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving({}) as gone:
        url = gone.url
    open_registry().add(record(url, tmp_path / "tiny.log"))
    assert run(["chat", "-m", "hi"]) == ExitCode.UNREACHABLE
    assert "`stoker status tiny` says how it is" in capsys.readouterr().err


def test_the_variable_is_stronger_than_the_one_that_runs(
    server: LocalServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    open_registry().add(record("http://127.0.0.1:9", tmp_path / "tiny.log"))
    monkeypatch.setenv("STOKER_URL", server.url)
    assert run(["chat", "-m", "hi"]) == 0
    capsys.readouterr()
    assert run(["stop", "--dry-run"]) == ExitCode.UNREACHABLE
    said = capsys.readouterr().err
    assert said.startswith(f"error: STOKER_URL says so: {server.url} is no server")
    assert "servers: tiny" in said
    monkeypatch.setenv("STOKER_URL", "tinny")
    assert run(["stop", "--dry-run"]) == ExitCode.UNREACHABLE
    assert "STOKER_URL: no server is called tinny" in capsys.readouterr().err


def test_what_runs_counts_before_what_failed(
    server: LocalServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_registry().add(
        record("http://127.0.0.1:9", tmp_path / "b.log", name="big", state=ServerState.FAILED)
    )
    assert run(["stop", "--dry-run"]) == 0
    assert "would stop big" in capsys.readouterr().out
    open_registry().add(record(server.url, tmp_path / "a.log"))
    assert run(["stop", "--dry-run"]) == 0
    assert "would stop tiny" in capsys.readouterr().out


def test_a_number_that_means_two_servers_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_registry().add(record("http://127.0.0.1:9", tmp_path / "a.log"))
    pid = str(os.getpid())
    open_registry().add(record("http://127.0.0.1:10", tmp_path / "b.log", name="big"))
    assert run(["stop", pid, "--dry-run"]) == ExitCode.USAGE
    assert f"{pid} means more than one server" in capsys.readouterr().err
    open_registry().add(record("http://127.0.0.1:11", tmp_path / "c.log", name=pid))
    assert run(["stop", pid, "--dry-run"]) == 0
    assert f"would stop {pid}: " in capsys.readouterr().out


def test_server_and_text_in_either_order(
    server: LocalServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_registry().add(record("http://127.0.0.1:9", tmp_path / "tiny.log"))
    for words in ([server.url, "once upon"], ["once upon", server.url]):
        assert run(["complete", *words]) == 0
        assert run(["trace", *words, "--json"]) == 0
    prompts = [json.loads(call.body) for call in server.calls if call.method == "POST"]
    assert [body["prompt"] for body in prompts if "prompt" in body] == ["once upon"] * 2
    capsys.readouterr()
    assert run(["complete", "a", "b", "c"]) == ExitCode.USAGE


def test_logs_without_a_word_at_a_terminal(server: LocalServer, tmp_path: Path) -> None:
    open_registry().add(record(server.url, tmp_path / "tiny.log"))
    master, slave = pty.openpty()
    try:
        code = "from app.cli import main; main(['logs', '--json'])"
        done = subprocess.run(
            [sys.executable, "-c", code], stdin=slave, capture_output=True, timeout=60, check=False
        )
    finally:
        os.close(master)
        os.close(slave)
    assert json.loads(done.stdout)["schema"] == "stoker.logs"


class _UnixHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer()

    def _answer(self) -> None:
        route = ROUTES.get(self.path)
        body = b"".join(route(None).chunks) if route else b"not found"
        self.send_response(200 if route else 404)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def unix_server(path: Path) -> Iterator[None]:
    with socketserver.ThreadingUnixStreamServer(str(path), _UnixHandler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("command", ASKING)
def test_a_socket_file(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, shown = ASKING[command]
    with unix_server(tmp_path / "s"):
        run(typed(words, f"unix:{tmp_path}/s"))
    captured = capsys.readouterr()
    assert shown.format(url=f"unix:{tmp_path}/s") in captured.out, captured.err


@pytest.mark.filterwarnings("ignore:.*Exception ignored in. <socket")  # httpcore drops it open
def test_a_socket_file_that_nobody_serves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["chat", f"unix:{tmp_path}/s", "-m", "hi"]) == ExitCode.UNREACHABLE
    assert f"unix:{tmp_path}/s" in capsys.readouterr().err
    assert run(["chat", "unix:", "-m", "hi"]) in (ExitCode.USAGE, ExitCode.UNREACHABLE)
