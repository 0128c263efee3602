from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import psutil
import pytest

from app.ops.child_process import guard_session, kill_session, spawn
from tests.app.test_supervisor import wait_for

MARK = "STOKER_SERVER_MARK=of-this-test"
FAMILY = "sleep 600 & sleep 600"


@pytest.mark.skipif(not psutil.LINUX, reason="the guard looks into /proc")
def test_the_end_of_the_pipe_ends_the_whole_session() -> None:
    server = spawn(["sh", "-c", FAMILY], stdout=subprocess.DEVNULL)
    wait_for(lambda: len(psutil.Process(server.pid).children()) == 2)
    children = psutil.Process(server.pid).children()
    guard = guard_session(server.pid, MARK)
    server.kill()  # as the kernel does when its parent dies; the children live on
    server.wait()

    assert all(child.is_running() for child in children)
    guard.communicate(timeout=30)
    assert psutil.wait_procs(children, timeout=10)[1] == []


@pytest.mark.skipif(not psutil.LINUX, reason="the guard looks into /proc")
def test_what_a_killed_server_left_is_removed_too(tmp_path: Path) -> None:
    left, used = tmp_path / "left", tmp_path / "used"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(left))
    server = spawn(["sleep", "600"], stdout=subprocess.DEVNULL)
    guard = guard_session(server.pid, MARK)
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(used))
        guard.communicate(b"".join(os.fsencode(path) + b"\0" for path in (left, used)), timeout=30)
        server.wait()

        assert not left.exists()
        assert used.exists()


def test_a_guard_lets_everyone_live_as_long_as_we_do() -> None:
    server = spawn(["sleep", "600"], stdout=subprocess.DEVNULL)
    guard = guard_session(server.pid, MARK)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            server.wait(timeout=0.3)
        assert guard.poll() is None
    finally:
        guard.communicate(timeout=30)
        kill_session(server)
