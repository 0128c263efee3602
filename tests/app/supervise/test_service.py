"""`stoker serve` under a service manager, heard on a real notify socket, with the fake engine."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from app.errors import ExitCode
from app.selftest import engine
from engine.machine.ports import free_port
from tests.fakes import serve_fake
from tests.waiting import wait_for

_PATIENCE_S = 60.0


class Service:
    """A supervisor started as a service manager starts it, and what it says to its manager."""

    def __init__(self, folder: Path, *command: str) -> None:
        self.state = folder / "state"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(folder / "notify"))
        self.socket.settimeout(_PATIENCE_S)
        self.heard: list[str] = []
        self.err = folder / "stderr"
        with self.err.open("wb") as err:
            journal = os.fstat(err.fileno())
            environment = {
                **os.environ,
                "STOKER_STATE_DIR": str(self.state),
                "NOTIFY_SOCKET": str(folder / "notify"),
                "WATCHDOG_USEC": "3000000",
                "JOURNAL_STREAM": f"{journal.st_dev}:{journal.st_ino}",
            }
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                env=environment,
            )

    def hear_until(self, wanted: str) -> list[str]:
        """What comes until a message begins so, that one included."""
        heard: list[str] = []
        while not heard or not heard[-1].startswith(wanted):
            heard.append(self.socket.recv(4096).decode())
        self.heard += heard
        return heard

    def rest(self) -> list[str]:
        """What had come when the process was gone."""
        self.socket.setblocking(False)
        heard = []
        with contextlib.suppress(BlockingIOError):
            while True:
                heard.append(self.socket.recv(4096).decode())
        return heard

    def end(self, number: signal.Signals | None = signal.SIGTERM) -> int:
        if number is not None:
            self.process.send_signal(number)
        self.process.communicate(timeout=_PATIENCE_S)
        return self.process.returncode

    def record(self) -> dict[str, object]:
        (path,) = self.state.glob("run/servers/*.json")
        document: dict[str, object] = json.loads(path.read_text())
        return document


def fake_service(folder: Path, mode: str, timeout_s: float, **care: object) -> Service:
    """What `stoker serve` runs behind its command line, on a fake engine."""
    words = (serve_fake.__file__, "service", mode, str(timeout_s), json.dumps(care))
    return Service(folder, sys.executable, *words)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def services(folder: Path) -> Iterator[list[Service]]:
    started: list[Service] = []
    yield started
    for service in started:
        if service.process.poll() is None:
            service.process.kill()
        service.process.communicate()
        service.socket.close()


def test_ready_comes_after_the_start_and_stopping_before_the_end(
    folder: Path, services: list[Service]
) -> None:
    services.append(service := fake_service(folder, "good", 60.0))
    heard = service.hear_until("READY=1")
    assert service.record()["state"] == "ready"
    assert any(text.startswith("STATUS=ready at http://") for text in heard)
    assert "WATCHDOG=1" not in heard

    service.hear_until("WATCHDOG=1")
    assert service.end() == ExitCode.OK
    rest = service.rest()
    assert "STOPPING=1" in rest
    assert "READY=1" not in rest


def test_a_start_tells_its_parts_and_gets_more_time_only_while_it_moves(
    folder: Path, services: list[Service]
) -> None:
    services.append(service := fake_service(folder, "never-ready", 3.0))
    assert service.end(None) == ExitCode.TIMEOUT
    heard = service.rest()
    assert [text for text in heard if text.startswith("STATUS=starting")]
    assert len([text for text in heard if text.startswith("EXTEND_TIMEOUT_USEC=3000000")]) <= 1
    assert not {"READY=1", "STOPPING=1", "WATCHDOG=1"} & set(heard)
    assert heard[-1].startswith("STATUS=the server was stopped: not ready")


def test_a_failed_start_is_never_ready(folder: Path, services: list[Service]) -> None:
    services.append(service := fake_service(folder, "crash-at-start", 60.0))
    assert service.end(None) == ExitCode.ENGINE_FAILED_TO_START
    heard = service.rest()
    assert not {"READY=1", "STOPPING=1"} & set(heard)
    assert heard[-1].startswith("STATUS=the server failed to start")


@pytest.mark.parametrize("mode", ["idle", "busy"])
def test_a_server_that_moves_or_waits_keeps_the_watchdog_quiet(
    mode: str, folder: Path, services: list[Service]
) -> None:
    services.append(service := fake_service(folder, f"selftest:{mode}", 60.0, stall_s=1.0))
    service.hear_until("READY=1")
    service.hear_until(f"STATUS={mode} at")
    for _ in range(2):
        service.hear_until("WATCHDOG=1")
    assert service.end() == ExitCode.OK


def test_a_frozen_engine_lets_the_watchdog_run_out(folder: Path, services: list[Service]) -> None:
    services.append(service := fake_service(folder, "selftest:frozen", 60.0, stall_s=1.0))
    service.hear_until("STATUS=stalled at")
    assert service.end() == ExitCode.OK
    assert "WATCHDOG=1" not in service.rest()


def test_the_engine_cannot_speak_for_its_supervisor(folder: Path, services: list[Service]) -> None:
    services.append(service := fake_service(folder, "good", 60.0))
    service.hear_until("READY=1")
    pid = service.record()["pid"]
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"NOTIFY_SOCKET" not in environment
    assert b"WATCHDOG" not in environment
    assert service.end() == ExitCode.OK


_LLAMA_SERVER = """#!/bin/sh
while [ "$1" != --port ]; do shift; done
exec {python} -I -S {engine} "$2" idle
"""


def _real_service(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Service, Path]:
    """`stoker serve` itself with a file of settings, and a small program in place of its engine."""
    program, model, settings = folder / "llama-server", folder / "x.gguf", folder / "settings.toml"
    program.write_text(_LLAMA_SERVER.format(python=sys.executable, engine=engine.__file__))
    program.chmod(0o755)
    model.write_bytes(b"GGUF")
    settings.write_text("[serve]\nidle-probe = 0\n")
    monkeypatch.setenv("STOKER_CONFIG_FILE", str(settings))
    stoker = str(Path(sys.executable).with_name("stoker"))
    words = ("serve", str(model), "--engine", "llama.cpp", "--engine-binary", str(program))
    return Service(folder, stoker, *words, "--port", str(free_port()), "--no-tui"), settings


def test_settings_that_are_changed_count_from_a_hang_up_on(
    folder: Path, services: list[Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, settings = _real_service(folder, monkeypatch)
    services.append(service)
    service.hear_until("READY=1")
    settings.write_text("[serve]\nrestart = 'perhaps'\n")
    service.process.send_signal(signal.SIGHUP)
    service.hear_until("READY=1")
    wait_for(lambda: "the settings are as before: --restart 'perhaps'" in service.err.read_text())

    settings.write_text("[serve]\nexit-when-idle = 0.05\nmax-model-len = 512\n")
    service.process.send_signal(signal.SIGHUP)
    assert service.end(None) == ExitCode.OK
    said = service.err.read_text()
    assert "flags of the engine count from its next start: restart the service" in said
    assert "no client has asked for as long as --exit-when-idle" in said
    assert "STOPPING=1" in service.rest()


def test_a_hang_up_reads_settings_again_and_usr1_tells_the_state(
    folder: Path, services: list[Service]
) -> None:
    services.append(service := fake_service(folder, "good", 60.0))
    service.hear_until("READY=1")
    service.process.send_signal(signal.SIGHUP)
    assert "MONOTONIC_USEC=" in service.hear_until("RELOADING=1")[-1]
    service.hear_until("READY=1")
    service.process.send_signal(signal.SIGUSR1)
    wait_for(lambda: "state of fake: ready; fake with fake; up for" in service.err.read_text())
    assert service.end() == ExitCode.OK


def test_the_journal_gets_priorities(folder: Path, services: list[Service]) -> None:
    services.append(service := fake_service(folder, "crash-at-start", 60.0))
    service.end(None)
    lines = service.err.read_text().splitlines()
    assert any(line.startswith("<3>error: the server failed to start") for line in lines)
    assert any(line.startswith("<5>hint: the whole log") for line in lines)
    assert any(line.startswith("starting fake") for line in lines), "information has none"


def test_the_endpoint_file_is_there_while_it_serves(folder: Path, services: list[Service]) -> None:
    path = folder / "endpoint.json"
    services.append(service := fake_service(folder, "good", 60.0, endpoint_file=str(path)))
    service.hear_until("READY=1")
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text())["url"] == service.record()["url"]
    assert service.end() == ExitCode.OK
    assert not path.exists()


def test_a_server_that_nobody_asks_ends_well(folder: Path, services: list[Service]) -> None:
    services.append(service := fake_service(folder, "selftest:idle", 60.0, exit_when_idle_s=3.0))
    assert service.end(None) == ExitCode.OK
    assert "STOPPING=1" in service.rest()
    assert "no client has asked for as long as --exit-when-idle" in service.err.read_text()


def test_scrapes_do_not_keep_it_but_a_stream_does(folder: Path, services: list[Service]) -> None:
    care = {"stall_s": 1.0, "exit_when_idle_s": 3.0}
    services.append(service := fake_service(folder, "selftest:busy", 60.0, **care))
    service.hear_until("READY=1")
    for _ in range(4):  # far more than three seconds
        service.hear_until("WATCHDOG=1")
    assert service.process.poll() is None
    (folder / "notify").unlink()
    assert service.end() == ExitCode.OK


def test_scrapes_alone_do_not_keep_it(folder: Path, services: list[Service]) -> None:
    care = {"idle_probe_s": 0.5, "exit_when_idle_s": 5.0}
    services.append(service := fake_service(folder, "selftest:idle", 60.0, **care))
    service.hear_until("READY=1")
    parts = urlsplit(str(service.record()["url"]))
    num_scrapes = 0
    with contextlib.suppress(OSError, http.client.HTTPException):
        while service.process.poll() is None:
            connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
            connection.request("GET", "/metrics")
            connection.getresponse().read()
            num_scrapes += 1
    assert num_scrapes
    assert service.end(None) == ExitCode.OK
