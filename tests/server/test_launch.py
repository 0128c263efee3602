"""The API server as a process of its own: start, signals, failures, exit codes, log."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from engine.machine.ports import free_port

READY = "Application startup complete."


class Process:
    """One server process and its log so far."""

    def __init__(self, command: list[str], cwd: Path, env: dict[str, str]) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            command, cwd=cwd, env={**os.environ, **env}, stdout=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, text: str, count: int = 1) -> None:
        deadline = time.monotonic() + 60
        while self.log.count(text) < count:
            assert time.monotonic() < deadline, f"no {text!r} in:\n{self.log}"
            assert self._reader.is_alive(), f"ended without {text!r}:\n{self.log}"
            time.sleep(0.01)

    def exit_code(self) -> int:
        code = self.process.wait(60)
        self._reader.join()
        return code

    def close(self) -> None:
        self.process.kill()
        self.exit_code()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def started(command: list[str], cwd: Path, env: dict[str, str]) -> Iterator[Process]:
    process = Process(command, cwd, env)
    try:
        yield process
    finally:
        process.close()


class Server:
    """Starts fake servers on the tiny model."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder = folder
        self.root = root

    @contextmanager
    def __call__(
        self, scenario: str, *flags: str, model: str | None = None, **env: str
    ) -> Iterator[tuple[Process, str]]:
        port = str(free_port())
        command = [sys.executable, "-m", "tests.server.fake_server", scenario]
        command += [model or str(self.folder), "--port", port, *flags]
        with started(command, self.root, env) as process:
            yield process, f"http://127.0.0.1:{port}"


@pytest.fixture
def serve(tiny_folder: Path, repo_root: Path) -> Server:
    return Server(tiny_folder, repo_root)


def _ask(url: str, max_tokens: int = 5, **fields: object) -> httpx.Response:
    body = {"prompt": "a", "max_tokens": max_tokens, **fields}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=60)


def test_life_of_a_server(serve: Server) -> None:
    env = {"STOKER_LOG_STATS_INTERVAL": "0.1"}
    with serve("works", "--served-model-name", "alphabet", **env) as (process, url):
        process.wait_for(READY)
        assert httpx.get(f"{url}/health").status_code == 200
        assert _ask(url).json()["choices"][0]["text"]
        process.wait_for("Avg generation throughput: 0.0 tokens/s")
        process.process.send_signal(signal.SIGTERM)
        assert process.exit_code() == 0
        log, pid = process.log, process.process.pid
    head = rf"\(APIServer pid={pid}\) INFO \d\d-\d\d \d\d:\d\d:\d\d \[\w+\.py:\d+\] "
    order = [
        rf"{head}Stoker server version \S+, serving model \S+",
        rf"{head}non-default args: {{.*'served_model_name': 'alphabet'.*}}",
        rf"{head}Resolved architecture: LlamaForCausalLM",
        rf"{head}Using max model len 512",
        rf"{head}Chunked prefill is enabled with max_num_batched_tokens=2048\.",
        rf"{head}Supported tasks: \('generate', 'embed'\)",
        rf"{head}Starting Stoker server on {re.escape(url)}",
        rf"{head}Available routes are:",
        rf"{head}Route: /v1/chat/completions, Methods: POST",
        rf"{head}Route: /health, Methods: GET, HEAD",
        rf"\(APIServer pid={pid}\) INFO:     Application startup complete\.",
        rf"\(APIServer pid={pid}\) INFO:     127\.0\.0\.1:\d+ - "
        r'"POST /v1/completions HTTP/1\.1" 200 OK',
        rf"{head}\[shutdown\] API server: shutdown triggered",
        rf"{head}\[shutdown\] API server: stopping engine client mode=drain timeout=5s",
        rf"{head}\[shutdown\] API server: engine client stopped",
        rf"\(APIServer pid={pid}\) INFO:     Application shutdown complete\.",
    ]
    position = 0
    for pattern in order:
        found = re.compile(f"^{pattern}$", re.MULTILINE).search(log, position)
        assert found, f"{pattern!r} is not in the rest of:\n{log}"
        position = found.end()
    throughput = (
        rf"{head}Engine 000: Avg prompt throughput: \d+\.\d tokens/s, Avg generation throughput: "
        r"\d+\.\d tokens/s, Running: \d+ reqs, Waiting: 0 reqs, CPU KV cache usage: \d+\.\d%, "
        r"Prefix cache hit rate: 0\.0%"
    )
    assert re.search(f"^{throughput}$", log, re.MULTILINE)  # its own clock says when
    assert "/health HTTP" not in log
    assert "Uvicorn running" not in log
    assert "heavy: []" in log
    assert not [line for line in log.splitlines() if "ERROR" in line or "WARNING" in line]


def test_starting_until_the_engine_is_ready_and_stop_meanwhile(serve: Server) -> None:
    with serve("loads-forever") as (process, url):
        process.wait_for("Chunked prefill")
        response = httpx.get(f"{url}/health")
        assert (response.status_code, response.json()) == (503, {"status": "starting"})
        assert _ask(url).status_code == 503
        process.process.send_signal(signal.SIGINT)
        assert process.exit_code() == 0
        assert READY not in process.log


def test_drain_lets_requests_finish_and_takes_no_new_ones(serve: Server) -> None:
    with serve("waits", "--shutdown-timeout", "300") as (process, url):
        process.wait_for(READY)
        with httpx.stream(
            "POST",
            f"{url}/v1/completions",
            json={"prompt": "a", "max_tokens": 8, "stream": True},
            timeout=60,
        ) as response:
            lines = response.iter_lines()
            next(lines)
            process.process.send_signal(signal.SIGTERM)
            process.wait_for("mode=drain timeout=300s")
            refused = _ask(url)
            assert refused.status_code == 503
            assert "shutting down" in refused.json()["error"]["message"]
            process.process.send_signal(signal.SIGUSR1)
            rest = list(lines)
        assert rest[-2:] == ["data: [DONE]", ""]
        assert "error" not in "".join(rest)
        assert process.exit_code() == 0


@pytest.mark.parametrize(
    ("timeout", "signals"), [("0", 1), ("0.3", 1), ("300", 2)], ids=["abort", "deadline", "forced"]
)
def test_requests_that_take_too_long_are_cut_off(serve: Server, timeout: str, signals: int) -> None:
    with serve("slow", "--shutdown-timeout", timeout) as (process, url):
        process.wait_for(READY)
        answers: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: answers.append(_ask(url, 400)))
        thread.start()
        while httpx.get(f"{url}/load").json() != {"server_load": 1}:
            time.sleep(0.01)
        process.process.send_signal(signal.SIGINT)
        if signals == 2:
            process.wait_for("stopping engine client")
            process.process.send_signal(signal.SIGINT)
        assert process.exit_code() == 0
        thread.join()
        assert answers[0].status_code == 503
        assert "cut off" in answers[0].json()["error"]["message"]


def test_dead_core_ends_the_server(serve: Server) -> None:
    with serve("dies") as (process, url):
        process.wait_for(READY)
        response = _ask(url)
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "engine_dead"
        assert process.exit_code() == 1
        assert re.search(r"ERROR .*EngineCore died: EngineCore is gone", process.log)


def test_engine_that_cannot_start(serve: Server) -> None:
    with serve("too-big") as (process, _):
        assert process.exit_code() == 1
        assert "MemoryBudgetError: the weights need 9 GiB, 1 GiB is free." in process.log
        assert "Traceback" not in process.log


def test_missing_model(serve: Server, tmp_path: Path) -> None:
    with serve("works", model=str(tmp_path / "absent")) as (process, _):
        assert process.exit_code() == 1
        assert re.search(r"ERROR .* ModelNotFoundError: .*absent", process.log)


@pytest.mark.parametrize(
    ("flags", "env", "message"),
    [
        (["--max-model-len", "9999"], {}, "--max-model-len 9999"),
        (["--port", "70000"], {}, "--port 70000"),
        (["--chat-template", "/absent.jinja"], {}, "--chat-template /absent.jinja"),
        ([], {"STOKER_LOG_STATS_INTERVAL": "often"}, "STOKER_LOG_STATS_INTERVAL='often'"),
    ],
)
def test_wrong_flags_end_with_code_two(
    serve: Server, flags: list[str], env: dict[str, str], message: str
) -> None:
    with serve("works", *flags, **env) as (process, _):
        assert process.exit_code() == 2
        assert f"ConfigError: {message}" in process.log


def test_port_in_use_is_told_at_once(serve: Server) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with serve("works", "--port", port) as (process, _):
            assert process.exit_code() == 1
            assert "OSError: [Errno 98] Address already in use" in process.log
            assert f"ConfigError: port {port} is already in use" in process.log
            assert "use --port N" in process.log
            assert "Resolved architecture" not in process.log


def test_host_that_is_not_here(serve: Server) -> None:
    with serve("works", "--host", "192.0.2.1") as (process, _):
        assert process.exit_code() == 1
        assert "ConfigError: --host 192.0.2.1 is no address of this machine" in process.log


def test_open_host_without_key_warns_and_access_log_can_be_off(serve: Server) -> None:
    flags = ["--host", "0.0.0.0", "--disable-uvicorn-access-log"]
    with serve("works", *flags) as (process, url):
        process.wait_for(READY)
        assert _ask(url).status_code == 200
        process.process.send_signal(signal.SIGTERM)
        assert process.exit_code() == 0
        assert re.search("WARNING .*0\\.0\\.0\\.0 without an API key", process.log)
        assert "POST /v1/completions HTTP" not in process.log


def test_key_never_reaches_the_log(serve: Server) -> None:
    with serve("works", "--api-key", "k-123456", "--enable-log-requests") as (process, url):
        process.wait_for(READY)
        assert _ask(url).status_code == 401
        headers = {"Authorization": "Bearer k-123456"}
        body = {"prompt": "a", "max_tokens": 1}
        path = f"{url}/v1/completions?key=k-123456"
        assert httpx.post(path, json=body, headers=headers).status_code == 200
        process.process.send_signal(signal.SIGTERM)
        assert process.exit_code() == 0
        assert "k-123456" not in process.log
        assert "Received request cmpl-" in process.log
        assert "'api_key': '***'" in process.log
