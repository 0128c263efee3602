from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from app.launch.engines import STOKER
from app.launch.launch_specs import LaunchSpec
from app.watch.readiness import (
    ProgressClock,
    ReadyProbe,
    StartOutcome,
    answers_one_token,
    bar_in_units,
    wait_until_ready,
)
from engine.env import PROBE_SALT
from engine.errors import EngineAsleepError
from engine.machine.ports import free_port
from engine.messages import ASLEEP
from engine.server.errors import error_body, to_api_error
from logparse import Event, FactFound, PhaseStarted, ProblemFound, ProgressMade
from logparse.records import Problem
from tests.waiting import wait_for


def script(*answers: bool) -> Callable[[], bool]:
    """A question whose answers are given in order; the last one stays."""
    rest: Iterator[bool] = iter(answers)
    state = {"last": answers[0]}

    def ask() -> bool:
        state["last"] = next(rest, state["last"])
        return state["last"]

    return ask


@pytest.mark.parametrize(
    ("is_ready", "is_alive", "is_stop_requested", "outcome"),
    [
        (script(False, False, True), script(True), script(False), StartOutcome.READY),
        (script(False), script(True, False), script(False), StartOutcome.EXITED),
        (script(False), script(True), script(False, True), StartOutcome.STOP_REQUESTED),
        (script(False), script(True), script(False), StartOutcome.TIMED_OUT),
    ],
)
def test_outcomes(
    is_ready: Callable[[], bool],
    is_alive: Callable[[], bool],
    is_stop_requested: Callable[[], bool],
    outcome: StartOutcome,
) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    result = wait_until_ready(
        is_ready=is_ready,
        is_alive=is_alive,
        is_stop_requested=is_stop_requested,
        timeout_s=5.0,
        still_s=lambda: now[0],
        sleep=sleep,
    )

    assert result is outcome


def test_an_answer_on_the_port_of_a_dead_server_is_not_readiness() -> None:
    outcome = wait_until_ready(
        is_ready=lambda: True,
        is_alive=script(True, False),
        is_stop_requested=lambda: False,
        timeout_s=1.0,
        still_s=lambda: 0.0,
        sleep=lambda seconds: None,
    )

    assert outcome is StartOutcome.EXITED


class Backend(ThreadingHTTPServer):
    """An HTTP server whose /health is good; `statuses` are its answers to completions, in turn."""

    daemon_threads = True

    def __init__(self, *statuses: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.statuses = list(statuses)
        self.body = b""
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
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)


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
    assert "cache_salt" not in body
    # Our engine's record of traffic leaves out what has this salt.
    assert answers_one_token(dataclasses.replace(spec, engine=STOKER))
    assert backend.asked[1][1]["cache_salt"] == PROBE_SALT


@pytest.mark.parametrize("status", [404, 400, 501])
def test_a_server_without_generation_is_ready_with_its_health(
    backend: Backend, status: int
) -> None:
    backend.statuses = [status]
    assert answers_one_token(spec_of(backend))


def test_a_server_that_sleeps_is_not_hung(backend: Backend) -> None:
    asleep = to_api_error(EngineAsleepError(ASLEEP))
    backend.statuses, backend.body = [asleep.status], error_body(asleep)
    assert answers_one_token(spec_of(backend))


def test_a_failed_step_is_asked_again(backend: Backend) -> None:
    backend.statuses = [500, 503]

    wait_for(ReadyProbe(spec_of(backend)).is_ready)
    assert len(backend.asked) == 3


def test_nobody_there_is_not_ready() -> None:
    spec = spec_at(free_port())

    assert not answers_one_token(spec, timeout_s=1)
    assert not ReadyProbe(spec).is_ready()


def test_phases_and_bars_that_move_are_progress_and_nothing_else() -> None:
    now = [0.0]
    clock = ProgressClock(lambda: now[0])

    def age_after(*events: Event) -> float:
        now[0] += 10.0
        clock.note(events)
        return clock.age_s

    problem = Problem("G1", "t", "w", (), "k", 1, None, True)
    assert age_after() == 10.0
    assert age_after(PhaseStarted(1, "serving", None)) == 0.0
    assert age_after(ProgressMade(2, "shards", 1, 4)) == 0.0
    assert age_after(ProgressMade(3, "shards", 1, 4)) == 10.0, "it stands still"
    assert age_after(ProblemFound(4, problem)) == 20.0
    assert age_after(ProgressMade(5, "shards", 2, 4)) == 0.0


def test_a_start_that_waits_for_another_moves_while_that_one_lives() -> None:
    now, living = [0.0], {4711}
    clock = ProgressClock(lambda: now[0], living.__contains__)
    clock.note([FactFound(1, "waits_for_pid", 4711)])
    now[0] = 500.0
    assert (clock.age_s, clock.waits_for_pid) == (0.0, 4711)
    living.clear()
    now[0] = 510.0
    assert (clock.age_s, clock.waits_for_pid) == (10.0, None)
    living.add(4711)
    clock.note([PhaseStarted(2, "loading", None)])  # it has its turn
    now[0] = 530.0
    assert (clock.age_s, clock.waits_for_pid) == (20.0, None)


@pytest.mark.parametrize(
    ("line", "bar"),
    [
        (
            "model.safetensors:  45%|####5     | 1.2G/2.6G [00:01<00:02, 700MB/s]",
            ("model.safetensors", 45),
        ),
        ("a:   1%| | 1M/2G\ra:   2%| | 2M/2G", ("a", 2)),
        ("100%|##########| 12.0/12.0 [00:00<00:00]", ("", 100)),
        (
            "(APIServer pid=1) INFO 11-30 13:06:20 [engine_start.py:60] Downloading o/m: 40% (1.20 "
            "GiB of 3.00 GiB)",
            ("downloading o/m, 1.20 GiB of 3.00 GiB", 40),
        ),
        ("KV cache usage: 45% | waiting", None),
        ("nothing", None),
    ],
)
def test_bars_whose_numbers_carry_units(line: str, bar: tuple[str, int] | None) -> None:
    found = bar_in_units(line, 7)

    assert (None if found is None else (found.text, found.done)) == bar
    assert found is None or (found.total, found.line_number) == (100, 7)
