from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from app.doctor.leftovers_probe import read_leftovers
from app.supervise.stopping import end_orphan
from engine.machine.gpus import GpuReading
from engine.machine.orphans import OrphanEngine, find_orphans
from engine.machine.ports import answers_http, free_port
from engine.machine.processes import SERVER_MARK
from tests.waiting import is_running, wait_for

SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
HTTPServer(("127.0.0.1", int(sys.argv[2])), BaseHTTPRequestHandler).serve_forever()
"""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="adoption is seen on Linux only")
# The middle process ends at once, so that its child is adopted.
ABANDON = """
import subprocess, sys
print(subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)
"""


def abandon(*command: str, mark: str | None = None) -> psutil.Process:
    """Start it as the child of a process that is gone."""
    environment = {name: value for name, value in os.environ.items() if name != SERVER_MARK}
    if mark is not None:
        environment[SERVER_MARK] = mark
    done = subprocess.run(
        [sys.executable, "-c", ABANDON, *command],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        check=True,
    )
    return psutil.Process(int(done.stdout))


LOST = "token@1@another"  # process 1 is not who started it


@pytest.fixture
def started() -> Iterator[list[psutil.Process]]:
    processes: list[psutil.Process] = []
    yield processes
    for process in processes:
        if process.is_running():
            process.kill()


@pytest.fixture
def llama_server(tmp_path: Path, started: list[psutil.Process]) -> psutil.Process:
    """A program of that name that Stoker started, and lost before it listened."""
    program = tmp_path / "llama-server"
    shutil.copy("/bin/sleep", program)
    started.append(abandon(str(program), "600", mark=LOST))
    return started[-1]


def pids() -> list[int]:
    return [one.pid for one in find_orphans()]


def test_a_server_that_stoker_lost_is_found_and_ended(llama_server: psutil.Process) -> None:
    (found,) = (one for one in find_orphans() if one.pid == llama_server.pid)
    assert (found.engine, found.program) == ("llama-server", "llama-server")

    assert end_orphan(found) == ()
    assert not is_running(llama_server)


def test_a_server_that_stoker_did_not_start_is_its_owners_business(
    tmp_path: Path, started: list[psutil.Process]
) -> None:
    """As after `nohup llama-server &`, while it still loads."""
    program = tmp_path / "llama-server"
    shutil.copy("/bin/sleep", program)
    started.append(abandon(str(program), "600"))

    assert started[-1].pid not in pids()


@pytest.mark.parametrize("mark", [None, LOST])
def test_a_server_that_listens_and_answers_is_no_orphan(
    mark: str | None, tmp_path: Path, started: list[psutil.Process]
) -> None:
    script = tmp_path / "engine" / "__main__.py"
    script.parent.mkdir()
    script.write_text(SERVER)
    port = free_port()
    started.append(abandon(sys.executable, str(script), "serve", str(port), mark=mark))
    wait_for(lambda: answers_http("127.0.0.1", port, 5.0))

    assert started[-1].pid not in pids()
    started[-1].suspend()
    assert (started[-1].pid in pids()) is (mark is not None)


def test_a_core_whose_server_is_gone_is_an_orphan(
    tmp_path: Path, started: list[psutil.Process]
) -> None:
    script = tmp_path / "engine" / "__main__.py"
    script.parent.mkdir()
    script.write_text("import time; time.sleep(600)")
    started.append(abandon(sys.executable, str(script), "core"))
    (found,) = (one for one in find_orphans() if one.pid == started[-1].pid)

    assert (found.engine, found.program) == ("stoker", "Stoker's EngineCore")
    facts = read_leftovers({"HOME": str(tmp_path)}, GpuReading())
    assert [one.pid for one in facts.orphans] == pids(), "doctor and `ps --orphans` agree"


def test_a_pid_that_belongs_to_another_process_by_now_is_left_alone(
    llama_server: psutil.Process,
) -> None:
    stale = OrphanEngine(llama_server.pid, "another", "llama-server", "x")

    assert end_orphan(stale) == ()
    assert is_running(llama_server)


def test_an_engine_with_a_parent_is_nobodys_orphan(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    shutil.copy("/bin/sleep", program)
    with subprocess.Popen([str(program), "600"]) as child:
        assert child.pid not in pids()
        child.kill()
