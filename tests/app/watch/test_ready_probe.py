from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from app.launch.launch_specs import LaunchSpec
from app.watch.ready_probe import ReadyProbe, answers_one_token
from engine.machine.ports import free_port
from tests.waiting import wait_for


class Backend(ThreadingHTTPServer):
    """An HTTP server whose /health is good; `statuses` are its answers to completions, in turn."""

    daemon_threads = True

    def __init__(self, *statuses: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.statuses = list(statuses)
        self.asked: list[tuple[str | None, Any]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()


class _Handler(BaseHTTPRequestHandler):
    server: Backend

    def do_GET(self) -> None:
        self._answer(200)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.headers["Authorization"], body))
        self.server.may_answer.wait(60)
        self._answer(self.server.statuses.pop(0) if self.server.statuses else 200)

    def log_message(self, *args: object) -> None:
        pass

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def backend() -> Iterator[Backend]:
    server = Backend()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.may_answer.set()
    server.shutdown()
    thread.join()
    server.server_close()


def spec_of(backend: Backend, **more: Any) -> LaunchSpec:
    return spec_at(backend.server_port, **more)


def spec_at(port: int, **more: Any) -> LaunchSpec:
    return LaunchSpec(
        engine="fake",
        argv=("fake",),
        model="m",
        host="127.0.0.1",
        port=port,
        shutdown_timeout_s=0,
        **more,
    )


def test_good_health_without_a_token_is_not_ready(backend: Backend) -> None:
    backend.may_answer.clear()
    probe = ReadyProbe(spec_of(backend))

    assert [probe.is_ready() for _ in range(3)] == [False] * 3
    backend.may_answer.set()
    wait_for(probe.is_ready)
    assert len(backend.asked) == 1


def test_one_token_is_asked_by_name_and_key(backend: Backend) -> None:
    spec = spec_of(backend, served_name="tiny", secrets={"SOME_KEY": "sk-1"})

    assert answers_one_token(spec)
    key, body = backend.asked[0]
    assert key == "Bearer sk-1"
    assert (body["model"], body["max_tokens"]) == ("tiny", 1)


@pytest.mark.parametrize("status", [404, 400, 501])
def test_a_server_without_generation_is_ready_with_its_health(
    backend: Backend, status: int
) -> None:
    backend.statuses = [status]
    assert answers_one_token(spec_of(backend))


def test_a_failed_step_is_asked_again(backend: Backend) -> None:
    backend.statuses = [500, 503]

    wait_for(ReadyProbe(spec_of(backend)).is_ready)
    assert len(backend.asked) == 3


def test_nobody_there_is_not_ready() -> None:
    spec = spec_at(free_port())

    assert not answers_one_token(spec, timeout_s=1)
    assert not ReadyProbe(spec).is_ready()
