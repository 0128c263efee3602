from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest

from app.supervise import second_guard
from app.supervise.child_process import spawn_server, start_guard, tell_guard
from app.supervise.process_tree import ProcessTree
from engine.machine.children import kill_session
from tests.waiting import wait_for

MARK = "STOKER_SERVER_MARK=of-this-test"
FAMILY = "sleep 600 & sleep 600"
# Leaves the session, wipes its environment, loses its parent at once.
HIDDEN = "(setsid env -i sh -c 'echo $$ > {file}; exec sleep 600' &); exec sleep 600"
# Dies like a supervisor that is killed: a child with a guard, then SIGKILL to itself.
KILLED_SUPERVISOR = """
import os, signal, subprocess, sys
from pathlib import Path
from app.supervise import second_guard
from app.supervise.child_process import spawn_server, start_guard, tell_guard

guard = start_guard(sys.argv[1])
family = ["sh", "-c", sys.argv[2]]
server = spawn_server(family, stdout=subprocess.DEVNULL, death_signal=signal.SIGSTOP)
tell_guard(guard, [str(server.pid)])
print(server.pid, flush=True)
while not Path(sys.argv[3]).exists() or not Path(sys.argv[3]).read_text():
    pass
os.kill(os.getpid(), signal.SIGKILL)
"""


def guard_of(
    server: subprocess.Popen[bytes], names: Iterable[Path] = ()
) -> subprocess.Popen[bytes]:
    guard = start_guard(MARK)
    tell_guard(guard, [str(server.pid), *map(str, names)])
    return guard


@pytest.mark.skipif(not psutil.LINUX, reason="the guard looks into /proc")
def test_the_end_of_the_pipe_ends_the_whole_session() -> None:
    server = spawn_server(["sh", "-c", FAMILY], stdout=subprocess.DEVNULL)
    wait_for(lambda: len(psutil.Process(server.pid).children()) == 2)
    children = psutil.Process(server.pid).children()
    guard = guard_of(server)
    server.kill()
    server.wait()

    assert all(child.is_running() for child in children)
    guard.communicate(timeout=60)
    assert psutil.wait_procs(children, timeout=60)[1] == []


@pytest.mark.skipif(not psutil.LINUX, reason="the kernel makes the server adopt its orphans")
def test_a_process_that_hides_ends_with_a_killed_supervisor(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    words = [MARK, HIDDEN.format(file=file), str(file)]
    done = subprocess.run(
        [sys.executable, "-c", KILLED_SUPERVISOR, *words],
        capture_output=True,
        timeout=60,
        check=False,
    )
    hidden, server = int(file.read_text()), int(done.stdout)

    assert done.returncode == -signal.SIGKILL
    wait_for(lambda: not psutil.pid_exists(hidden) and not psutil.pid_exists(server))


@pytest.mark.skipif(not psutil.LINUX, reason="the kernel makes the server adopt its orphans")
def test_the_tree_of_a_server_has_the_process_that_hides(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    server = spawn_server(["sh", "-c", HIDDEN.format(file=file)], stdout=subprocess.DEVNULL)
    wait_for(lambda: file.exists() and file.read_text().endswith("\n"))
    tree = ProcessTree(server.pid, MARK)

    def is_seen() -> bool:
        tree.refresh()
        return tree.pids() == {server.pid, int(file.read_text())}

    try:
        wait_for(is_seen)
    finally:
        tree.signal_all(signal.SIGKILL)
        server.wait()


def test_what_becomes_another_program_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    server = spawn_server(["sh", "-c", FAMILY], stdout=subprocess.DEVNULL)
    wait_for(lambda: bool(psutil.Process(server.pid).children()))
    tree = ProcessTree(server.pid, MARK)
    try:
        monkeypatch.setattr(psutil.Process, "cmdline", lambda self: [])
        tree.refresh()
        assert tree.pids() == {server.pid}
        tree.refresh()
        assert len(tree.pids()) > 1
    finally:
        tree.signal_all(signal.SIGKILL)
        server.wait()


@pytest.mark.skipif(not psutil.LINUX, reason="the guard looks into /proc")
def test_what_a_killed_server_left_is_removed_too(tmp_path: Path) -> None:
    left, used = tmp_path / "left", tmp_path / "used"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(left))
    server = spawn_server(["sleep", "600"], stdout=subprocess.DEVNULL)
    guard = guard_of(server, (left, used))
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(used))
        guard.communicate(timeout=60)
        server.wait()

        assert not left.exists()
        assert used.exists()


def test_a_guard_lets_everyone_live_as_long_as_we_do() -> None:
    server = spawn_server(["sleep", "600"], stdout=subprocess.DEVNULL)
    guard = guard_of(server)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            server.wait(timeout=0.3)
        assert guard.poll() is None
    finally:
        guard.communicate(timeout=60)
        kill_session(server)


def test_a_guard_without_a_server_ends() -> None:
    start_guard(MARK).communicate(timeout=60)


@pytest.mark.skipif(not psutil.LINUX, reason="the second guard waits on pidfds")
def test_the_second_guard_waits_for_a_supervisor_that_is_seen_to_end_after_its_server() -> None:
    mark = "STOKER_SERVER_MARK=of-the-second-guard"
    sleep = ["sleep", "600"]
    supervisor, guard, server = (subprocess.Popen(sleep) for _ in range(3))
    name, _, value = mark.partition("=")
    left = subprocess.Popen(sleep, env={name: value}, start_new_session=True)
    left.send_signal(signal.SIGSTOP)
    script = Path(second_guard.__file__)
    pids = [str(process.pid) for process in (supervisor, guard, server)]
    second = subprocess.Popen([sys.executable, "-I", "-S", str(script), *pids, mark])
    wait_for(lambda: "anon_inode:[pidfd]" in _descriptors(second.pid))
    guard.kill()
    looked = _sleeps(second)
    server.kill()
    wait_for(lambda: second.poll() is not None or _sleeps(second) > looked)
    assert second.poll() is None, "it took the server's end for all that there is"
    supervisor.kill()
    for process in (guard, server, supervisor, second):
        process.wait(timeout=60)

    wait_for(lambda: left.poll() is not None)


def _sleeps(process: subprocess.Popen[bytes]) -> int:
    """How often it has gone to sleep; -1 once it has ended."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(process.pid).num_ctx_switches().voluntary
    return -1


def _descriptors(pid: int) -> list[str]:
    folder = Path(f"/proc/{pid}/fd")
    return [os.readlink(entry) for entry in folder.iterdir()]
