from __future__ import annotations

import subprocess

import psutil
import pytest

from app.ops.child_process import guard_session, kill_session, spawn
from tests.app.test_supervisor import wait_for

FAMILY = "sleep 600 & sleep 600"


@pytest.mark.skipif(not psutil.LINUX, reason="the guard looks into /proc")
def test_the_end_of_the_pipe_ends_the_whole_session() -> None:
    server = spawn(["sh", "-c", FAMILY], stdout=subprocess.DEVNULL)
    wait_for(lambda: len(psutil.Process(server.pid).children()) == 2)
    children = psutil.Process(server.pid).children()
    guard = guard_session(server.pid)
    server.kill()  # as the kernel does when its parent dies; the children live on
    server.wait()

    assert all(child.is_running() for child in children)
    guard.communicate(timeout=30)
    assert psutil.wait_procs(children, timeout=10)[1] == []


def test_a_guard_lets_everyone_live_as_long_as_we_do() -> None:
    server = spawn(["sleep", "600"], stdout=subprocess.DEVNULL)
    guard = guard_session(server.pid)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            server.wait(timeout=0.3)
        assert guard.poll() is None
    finally:
        guard.communicate(timeout=30)
        kill_session(server)
