"""When the service manager hears what, with a clock of our own."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.supervise.managed_server import ManagedServer
from app.supervise.service_notify import ServiceManager
from app.supervise.service_report import PreparationReport, ServiceReport
from engine.model_store.progress import StoreProgress


class Told:
    """A report on a server whose state the test sets, and what arrives on its socket."""

    def __init__(self, folder: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(folder / "notify"))
        self.socket.setblocking(False)
        self.now_s = 100.0
        self.state = SimpleNamespace(state="busy", detail=None, phase=None, num_restarts=0)
        self.server: Any = SimpleNamespace(
            care=SimpleNamespace(service=ServiceManager(str(folder / "notify"), watchdog_s=30.0)),
            spec=SimpleNamespace(addresses="http://x:1", shutdown_timeout_s=5.0),
            status=lambda: self.state,
            moved_at=None,
        )
        self.report = ServiceReport(cast(ManagedServer, self.server), 60.0, lambda: self.now_s)

    def heard(self) -> list[str]:
        found = []
        while True:
            try:
                found.append(self.socket.recv(4096).decode())
            except BlockingIOError:
                return found

    def run(self, seconds: int, *, moves: bool) -> list[str]:
        for _ in range(seconds):
            self.now_s += 1.0
            if moves:
                self.server.moved_at = self.now_s
            self.report.running()
        return self.heard()


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    made = Told(tmp_path)
    yield made
    made.socket.close()


def test_a_model_that_is_fetched_gets_more_time_as_long_as_it_moves(told: Told) -> None:
    report = PreparationReport(
        told.server.care.service, "smollm2-135m", 60.0, clock=lambda: told.now_s
    )
    for done in range(30):  # half a second each
        told.now_s += 0.5
        report(StoreProgress("download", done << 20, 89 << 20))
    told.now_s += 300.0  # it stands still: nobody calls
    downloading = told.heard()
    report(StoreProgress("convert", 1, 272, "tensors"))

    assert downloading[0] == "STATUS=smollm2-135m: downloading (89.0 MiB)"
    assert downloading[1:] == ["EXTEND_TIMEOUT_USEC=60000000"] * 15
    assert told.heard() == [
        "STATUS=smollm2-135m: converting to bf16",
        "EXTEND_TIMEOUT_USEC=60000000",
    ]


def test_the_watchdog_hears_of_an_engine_that_moves_a_third_of_its_time(told: Told) -> None:
    told.report.ready()
    told.heard()
    assert told.run(30, moves=True).count("WATCHDOG=1") == 3


def test_it_hears_nothing_of_one_that_stands_still(told: Told) -> None:
    told.report.ready()
    told.server.moved_at = told.now_s
    told.run(5, moves=True)
    assert told.run(10, moves=False).count("WATCHDOG=1") == 1, "it had moved since the last time"
    assert "WATCHDOG=1" not in told.run(200, moves=False)
    assert "WATCHDOG=1" in told.run(1, moves=True), "and it can come back"


def test_a_stalled_server_says_why(told: Told) -> None:
    told.report.ready()
    told.heard()
    told.state.state, told.state.detail = "stalled", "1 request in the engine, no step for 60 s"
    heard = told.run(40, moves=False)
    assert heard == ["STATUS=stalled at http://x:1: 1 request in the engine, no step for 60 s"], (
        "once, and without a sign of life"
    )


def test_a_start_gets_more_time_when_it_moved(told: Told) -> None:
    told.state.phase = "load weights"
    for seconds, moves in ((3, True), (100, False)):
        for _ in range(seconds):
            told.now_s += 1.0
            told.server.moved_at = told.now_s if moves else told.server.moved_at
            told.report.starting()
    heard = told.heard()
    assert heard.count("EXTEND_TIMEOUT_USEC=60000000") == 3
    assert heard.count("STATUS=starting: load weights") == 1
    assert "WATCHDOG=1" not in heard


def test_a_start_after_a_death_keeps_the_watchdog_quiet_while_it_moves(told: Told) -> None:
    told.report.ready()
    told.heard()
    told.state.num_restarts, told.state.phase = 1, "load weights"
    told.now_s += 10.0
    told.server.moved_at = told.now_s
    told.report.starting()
    assert told.heard() == ["STATUS=starting again: load weights", "WATCHDOG=1"]


def test_without_a_manager_nothing_is_sent(told: Told) -> None:
    care = told.server.care
    care.service = dataclasses.replace(care.service, address=None)
    report = ServiceReport(cast(ManagedServer, told.server), 60.0, lambda: told.now_s)
    report.ready()
    report.stopping()
    assert told.heard() == []
