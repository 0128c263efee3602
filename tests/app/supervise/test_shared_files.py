"""Shared memory and sockets of a server's processes: learnt while they live, gone afterwards."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from app.supervise.shared_files import SharedFiles
from tests.waiting import wait_for

pytestmark = pytest.mark.skipif(not psutil.LINUX, reason="looks into /proc")

HOLDER = """
import mmap, os, socket, sys
file = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR, 0o600)
os.ftruncate(file, 4096)
memory = mmap.mmap(file, 4096)
os.close(file)
if len(sys.argv) > 2:
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(sys.argv[2])
print("up", flush=True)
sys.stdin.read()
"""


def hold(*paths: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", HOLDER, *map(str, paths)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    return child


def end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.communicate()


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    path = Path("/dev/shm") / f"stoker-test-{tmp_path.name}-{tmp_path.parent.name}"
    yield path
    path.unlink(missing_ok=True)


def test_what_a_killed_process_left_is_removed(tmp_path: Path, memory: Path) -> None:
    socket = tmp_path / "s"
    child = hold(memory, socket)
    files = SharedFiles()
    files.note([child.pid])
    end(child)
    assert memory.exists()
    assert socket.exists()

    assert files.remove() == ()
    assert not memory.exists()
    assert not socket.exists()


def test_what_somebody_else_uses_is_left_alone(memory: Path) -> None:
    child, other = hold(memory), hold(memory)
    files = SharedFiles()
    files.note([child.pid])
    end(child)
    try:
        assert files.remove() == ()
        assert memory.exists()
    finally:
        end(other)


def test_what_cannot_be_removed_is_named(tmp_path: Path, memory: Path) -> None:
    child = hold(memory)
    files = SharedFiles()
    files.note([child.pid])
    end(child)
    memory.unlink()
    memory.mkdir()
    try:
        assert files.remove() == (str(memory),)
    finally:
        memory.rmdir()


def test_processes_that_are_gone_tell_nothing(memory: Path) -> None:
    child = hold(memory)
    end(child)
    files = SharedFiles()
    files.note([child.pid, 2**22 + 1])
    wait_for(lambda: not psutil.pid_exists(child.pid))

    assert files.remove() == ()
    assert memory.exists()
