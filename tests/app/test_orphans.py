from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from app.ops.orphans import OrphanEngine, end_orphan, find_orphans
from tests.app.test_supervisor import is_running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="adoption is seen on Linux only")
# The middle process ends at once, so that its child is adopted.
_ABANDON = """
import subprocess, sys
print(subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)
"""


@pytest.fixture
def llama_server(tmp_path: Path) -> Iterator[psutil.Process]:
    """A program of that name whose parent has gone."""
    program = tmp_path / "llama-server"
    shutil.copy("/bin/sleep", program)
    done = subprocess.run(
        [sys.executable, "-c", _ABANDON, str(program), "600"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    process = psutil.Process(int(done.stdout))
    yield process
    if process.is_running():
        process.kill()


def test_an_engine_whose_parent_has_gone_is_found_and_ended(llama_server: psutil.Process) -> None:
    (found,) = (one for one in find_orphans() if one.pid == llama_server.pid)
    assert (found.engine, found.program) == ("llama-server", "llama-server")

    assert end_orphan(found) == ()
    assert not is_running(llama_server)


def test_a_pid_that_belongs_to_another_process_by_now_is_left_alone(
    llama_server: psutil.Process,
) -> None:
    stale = OrphanEngine(llama_server.pid, llama_server.create_time() - 60, "llama-server", "x")

    assert end_orphan(stale) == ()
    assert is_running(llama_server)


def test_an_engine_with_a_parent_is_nobodys_orphan(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    shutil.copy("/bin/sleep", program)
    with subprocess.Popen([str(program), "600"]) as child:
        assert child.pid not in [one.pid for one in find_orphans()]
        child.kill()
