from __future__ import annotations

import dataclasses
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from app.errors import ExitCode, StokerError
from app.launch.launch_specs import LaunchSpec
from app.server_logs.log_sink import LogSink
from app.supervise.ending import StopTimes
from app.supervise.supervisor import Supervisor
from engine.machine.ports import free_port, is_port_free
from tests.fakes.nvml import GIB, Card, ScriptedNvml
from tests.fakes.serve_fake import fake_engine_spec
from tests.waiting import is_running, wait_for

Launch = Callable[..., tuple[Supervisor, LogSink, LaunchSpec]]
QUICK = StopTimes(grace_s=0.3, group_s=1.0, kill_s=60.0)  # with those that do not obey
PATIENT = StopTimes(grace_s=600.0, group_s=600.0, kill_s=60.0)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Launch]:
    running: list[Supervisor] = []

    def launch(mode: str, times: StopTimes = PATIENT) -> tuple[Supervisor, LogSink, LaunchSpec]:
        spec = fake_engine_spec(free_port(), mode, 0.2)
        sink = LogSink(tmp_path / "engine.log", secrets=("very-secret-key",))
        supervisor = Supervisor(spec, sink, times)
        supervisor.start()
        running.append(supervisor)
        return supervisor, sink, spec

    yield launch
    for supervisor in running:
        supervisor.hurry()
        supervisor.stop()


def is_serving(spec: LaunchSpec) -> bool:
    return not is_port_free(spec.host, spec.port)


def test_a_polite_server_ends_on_sigterm(
    start: Launch,
) -> None:
    supervisor, _, spec = start("good")
    wait_for(lambda: is_serving(spec))

    report = supervisor.stop()

    assert report.is_clean
    assert not report.was_killed
    assert report.num_ended == 1
    assert not supervisor.is_alive()
    assert not psutil.pid_exists(supervisor.pid)


def test_a_server_that_ignores_sigterm_is_killed(
    start: Launch,
) -> None:
    supervisor, _, spec = start("ignore-term", QUICK)
    wait_for(lambda: is_serving(spec))

    report = supervisor.stop()

    assert report.was_killed
    assert report.is_clean
    assert supervisor.exit_code == -signal.SIGKILL


@pytest.mark.parametrize("mode", ["grandchild", "stubborn-grandchild"])
def test_grandchildren_are_ended_too(mode: str, start: Launch) -> None:
    supervisor, _, spec = start(mode, QUICK if mode == "stubborn-grandchild" else PATIENT)
    wait_for(lambda: is_serving(spec))
    grandchildren = psutil.Process(supervisor.pid).children()

    report = supervisor.stop()

    assert len(grandchildren) == 1
    assert not any(is_running(process) for process in grandchildren)
    assert report.num_ended == 2
    assert report.is_clean
    assert report.was_killed == (mode == "stubborn-grandchild")


def test_an_orphan_of_a_crashed_server_is_found_by_its_session(
    start: Launch,
) -> None:
    supervisor, _, spec = start("grandchild")
    wait_for(lambda: is_serving(spec))
    (orphan,) = psutil.Process(supervisor.pid).children()
    os.kill(supervisor.pid, signal.SIGKILL)
    wait_for(lambda: not supervisor.is_alive())
    assert is_running(orphan)

    report = supervisor.stop()

    assert not is_running(orphan)
    assert report.is_clean


def test_hurry_skips_the_patience(
    start: Launch,
) -> None:
    supervisor, _, spec = start("ignore-term")
    wait_for(lambda: is_serving(spec))

    supervisor.hurry()
    report = supervisor.stop()

    assert report.was_killed
    assert report.is_clean


def test_the_log_is_private_and_without_the_key(
    start: Launch,
) -> None:
    supervisor, sink, spec = start("good")
    wait_for(lambda: is_serving(spec))
    supervisor.stop()

    text = sink.path.read_text()
    assert sink.path.stat().st_mode & 0o777 == 0o600
    assert "the key is ***" in text
    assert "very-secret-key" not in text
    assert "Resolved architecture: LlamaForCausalLM" in text
    assert "very-secret-key" not in repr(spec)


def test_gpu_memory_that_stays_is_named(tmp_path: Path) -> None:
    card = Card()
    spec = fake_engine_spec(port := free_port(), "good", 0.2)
    times = dataclasses.replace(QUICK, gpu_s=0.0)
    supervisor = Supervisor(spec, LogSink(tmp_path / "x.log"), times, ScriptedNvml(card))
    supervisor.start()
    card.computing = [(supervisor.pid, 20 * GIB)]
    report = supervisor.stop()

    assert not report.is_clean
    assert report.remains(f"port {port}") == f"GPU 0 still holds 20.00 GiB for pid {supervisor.pid}"
    assert report.gpu_freed_bytes == 20 * GIB


def test_exit_status_of_a_crash(
    start: Launch,
) -> None:
    supervisor, sink, _ = start("crash-at-start")
    wait_for(lambda: not supervisor.is_alive())

    supervisor.stop()

    assert supervisor.exit_code == 1
    assert "Address already in use" in sink.tail(1)[0]


def test_a_missing_program_has_its_own_code(tmp_path: Path) -> None:
    spec = LaunchSpec(
        engine="fake",
        argv=(str(tmp_path / "no-such-engine"),),
        model="fake",
        host="127.0.0.1",
        port=free_port(),
        shutdown_timeout_s=0.1,
    )
    supervisor = Supervisor(spec, LogSink(tmp_path / "log"))

    with pytest.raises(StokerError) as caught:
        supervisor.start()

    assert caught.value.exit_code == ExitCode.NOT_FOUND


_LISTENER = """
import os, socket, sys, time
with socket.socket(socket.AF_UNIX) as sock:
    sock.bind(sys.argv[1])
    print(oct(os.stat(sys.argv[1]).st_mode & 0o777), flush=True)
    sock.listen()
    time.sleep(600)
"""


def test_no_engine_makes_a_socket_file_that_others_may_open(tmp_path: Path) -> None:
    path = tmp_path / "it.sock"
    with socket.socket(socket.AF_UNIX) as killed:  # what a killed server leaves is in nobody's way
        killed.bind(str(path))
    spec = LaunchSpec(
        engine="fake",
        argv=(sys.executable, "-c", _LISTENER, str(path)),
        model="fake",
        host="127.0.0.1",
        port=1,
        uds=str(path),
        shutdown_timeout_s=0.2,
    )
    log = tmp_path / "engine.log"
    supervisor = Supervisor(spec, LogSink(log, secrets=()), PATIENT)
    supervisor.start()
    wait_for(lambda: not spec.is_place_free())
    assert supervisor.stop().is_clean
    assert log.read_text() == "0o700\n", "as it is made, by a program that knows of no secrecy"
    assert not path.exists()
