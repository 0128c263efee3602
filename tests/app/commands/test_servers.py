"""`stoker ps`, `status`, `stop` on servers that run in the background."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.errors import ExitCode
from tests.fakes import serve_fake
from tests.fakes.terminal import Terminal
from tests.waiting import is_running, wait_for

Run = Callable[..., subprocess.CompletedProcess[str]]


class Machine:
    """State folder of its own, and the commands in it."""

    def __init__(self, state: Path) -> None:
        self.environment = {**os.environ, "STOKER_STATE_DIR": str(state)}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=180,
            check=False,
        )

    def serve(self, name: str, mode: str = "idle") -> subprocess.CompletedProcess[str]:
        return self.run(serve_fake.__file__, "detached", name, mode)

    def stoker(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run("-c", "from app.cli import main; main()", *words)

    def servers(self) -> dict[str, dict[str, Any]]:
        document = json.loads(self.stoker("ps", "--json").stdout)
        return {server["name"]: server for server in document["servers"]}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path / "state")
    yield found
    found.stoker("stop", "--all", "--now")


def test_a_background_server_from_start_to_stop(machine: Machine) -> None:
    started = machine.serve("one")
    assert started.returncode == 0, started.stderr
    assert started.stdout.startswith("ready at http://127.0.0.1:")

    server = machine.servers()["one"]
    tree = [psutil.Process(server["supervisor_pid"])]
    tree += tree[0].children(recursive=True)
    assert server["pid"] in [process.pid for process in tree]
    assert server["state"] in ("ready", "idle")
    assert machine.stoker("status", "one").returncode == ExitCode.OK
    assert os.getsid(tree[0].pid) != os.getsid(0), "it survives this terminal"

    fields = machine.stoker("status", "--plain").stdout
    assert f"url\thttp://127.0.0.1:{server['port']}\n" in fields
    shown = machine.stoker("stop", "--all", "--dry-run").stdout
    assert shown.startswith("would stop one: ")
    assert all(is_running(process) for process in tree)

    again = machine.serve("one")
    assert (again.returncode, "already running" in again.stderr) == (ExitCode.USAGE, True)

    stopped = machine.stoker("stop", str(server["pid"]))
    assert stopped.returncode == 0, stopped.stderr
    ended = f"stopped one: 2 processes and its supervisor ended, port {server['port']} free"
    assert ended in stopped.stderr
    assert "to serve it again: stoker serve --name one --engine stoker" in stopped.stderr
    assert not any(is_running(process) for process in tree)
    assert machine.servers() == {}


def test_a_start_that_fails_is_explained_and_its_code_handed_on(machine: Machine) -> None:
    started = machine.serve("one", "die:2")

    assert started.returncode == ExitCode.ENGINE_FAILED_TO_START
    assert started.stdout == ""
    assert "failed to start (exit status 1)" in started.stderr
    assert "part 2 of the start" in started.stderr


def test_a_later_death_stays_in_the_list_until_somebody_has_seen_it(machine: Machine) -> None:
    machine.serve("one")
    os.kill(machine.servers()["one"]["pid"], signal.SIGKILL)
    wait_for(lambda: machine.servers()["one"]["state"] == "failed")

    shown = machine.stoker("status")
    assert shown.returncode == ExitCode.ENGINE_DIED
    assert "killed by signal 9" in shown.stdout
    assert machine.stoker("stop", "one").returncode == 0
    assert machine.servers() == {}


def test_a_stalled_server_has_its_own_code(machine: Machine) -> None:
    machine.serve("one", "frozen")
    wait_for(lambda: machine.servers()["one"]["state"] == "stalled")

    shown = machine.stoker("status", "one")
    assert shown.returncode == ExitCode.ENGINE_STALLED
    assert "1 request in the engine, no step for" in shown.stdout


def test_a_wrong_name_is_answered_with_a_near_one(machine: Machine) -> None:
    machine.serve("coder")

    wrong = machine.stoker("stop", "codr")
    assert (wrong.returncode, "did you mean coder?" in wrong.stderr) == (ExitCode.UNREACHABLE, True)
    assert "needs a terminal" in machine.stoker("attach", "coder").stderr


def test_who_leaves_an_attached_dashboard_is_told_that_the_server_runs_on(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.serve("one")
    monkeypatch.setenv("STOKER_STATE_DIR", machine.environment["STOKER_STATE_DIR"])
    terminal = Terminal("attach", "one")
    terminal.wait_for("Quit")
    terminal.type("q")
    terminal.wait_for("one runs on; `stoker stop one` ends it")
    assert terminal.wait_for_end() == ExitCode.OK
    assert machine.servers()["one"]["state"] in ("ready", "idle")


def test_an_empty_machine(machine: Machine) -> None:
    assert machine.stoker("ps").returncode == 0
    assert machine.stoker("ps", "--plain").stdout == ""
    assert machine.stoker("stop").returncode == ExitCode.UNREACHABLE
    assert machine.stoker("stop", "--all").returncode == 0
    assert machine.stoker("stop", "x", "--all").returncode == ExitCode.USAGE


def test_a_server_between_two_starts_is_listed_and_can_be_stopped(machine: Machine) -> None:
    waiting = subprocess.Popen(
        [sys.executable, serve_fake.__file__, "detached", "one", "die:1", "600"],
        env=machine.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    wait_for(lambda: machine.servers().get("one", {}).get("state") == "backing off")
    server = machine.servers()["one"]
    shown = machine.stoker("status", "one")

    assert server["detail"].startswith("restart 1 of 5 in 600 s: the server failed to start")
    assert (server["pid"], server["restarts"]) == (None, 0)
    assert shown.returncode == ExitCode.NO
    assert "one: backing off (restart 1 of 5 in 600 s" in shown.stdout
    assert machine.stoker("stop", "one").returncode == 0
    assert waiting.communicate(timeout=120)[0] is None
    assert waiting.returncode == ExitCode.TERMINATED
    assert machine.servers() == {}


def test_a_supervisor_that_is_stopped_is_said_and_still_stops(machine: Machine) -> None:
    machine.serve("one")
    server = machine.servers()["one"]
    supervisor = psutil.Process(server["supervisor_pid"])
    supervisor.suspend()
    wait_for(lambda: supervisor.status() == psutil.STATUS_STOPPED)

    status = machine.stoker("status", "one")
    assert status.returncode == ExitCode.ENGINE_STALLED
    wake = f"kill -CONT {server['supervisor_pid']}"
    assert f"its stoker (pid {server['supervisor_pid']}) was stopped by a signal" in status.stdout
    assert wake in status.stdout
    stopped = machine.stoker("stop", "one")
    assert stopped.returncode == 0
    assert "it is woken to end" in stopped.stderr
    assert not is_running(supervisor)


def test_a_server_that_takes_no_new_connection_is_seen(machine: Machine) -> None:
    machine.serve("one")
    os.kill(machine.servers()["one"]["pid"], signal.SIGSTOP)
    wait_for(lambda: machine.stoker("status", "one").returncode == ExitCode.ENGINE_STALLED)


def test_a_record_that_could_not_be_written_does_not_mislead_status(machine: Machine) -> None:
    machine.serve("one")
    (path,) = Path(machine.environment["STOKER_STATE_DIR"]).glob("run/servers/*.json")
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "state": "starting"}))

    status = machine.stoker("status", "one")
    assert status.returncode == ExitCode.OK
    assert "starting" not in status.stdout


def test_a_failure_of_many_lines_stands_below_the_rows(machine: Machine) -> None:
    machine.serve("one", "die:1")
    shown = machine.stoker("status", "one").stdout.splitlines()
    first, blank = shown[0], shown.index("")
    assert first.startswith("server      one: failed (")
    assert first.endswith(")")
    assert "the last lines of its log:" in "\n".join(shown[blank:])


def test_a_background_start_on_a_full_disk_says_so(machine: Machine) -> None:
    limited = "import resource, runpy, sys; sys.argv = ['x', 'detached', 'one', 'idle']; "
    limited += "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); "
    limited += f"runpy.run_path({serve_fake.__file__!r}, run_name='__main__')"
    done = machine.run("-c", limited)

    assert done.returncode == ExitCode.USAGE
    assert "is that disk full?" in done.stderr
