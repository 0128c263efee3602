from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from engine.errors import ConfigError
from engine.machine.ports import is_uds_served
from engine.server.http.binding import bind_uds, socket_url
from tests.places import ROOT


def test_a_socket_file_is_private_and_one_that_was_left_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "it.sock")
    with bind_uds(path) as first:
        assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
        assert socket_url(first) == f"unix:{path}"
        with pytest.raises(ConfigError, match="in use by a server that answers"):
            bind_uds(path)
    assert Path(path).exists(), "as a killed server leaves it"
    assert not is_uds_served(path)
    with bind_uds(path):
        assert is_uds_served(path)


_AT_THE_BIND = """
import os, sys
from engine.server.http.binding import bind_uds

def look(event, details):
    if event == "socket.bind":
        status = open("/proc/self/status").read()
        print(status.partition("Umask:")[2].split()[0])

os.umask(0)
sys.addaudithook(look)
bind_uds(sys.argv[1])
print(oct(os.umask(0)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the umask of a process is told by Linux")
def test_there_is_no_moment_in_which_others_may_open_it(tmp_path: Path) -> None:
    path = str(tmp_path / "it.sock")
    command = [sys.executable, "-c", _AT_THE_BIND, path]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == ["0177", "0o0"], "while it is made; afterwards as before"
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600


def test_another_file_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="a file is there"):
        bind_uds(str(path))
    assert path.read_text() == "mine"


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be listened on: No such file"):
        bind_uds(str(tmp_path / "no" / "it.sock"))
