from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import pytest

from app.ops.socket_folders import remove_dead_socket_folders

_NO_PID = 2**22 + 1


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def make(base: Path, name: str) -> Path:
    folder = base / name
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(folder / "input"))  # the file stays when the socket is closed
    return folder


def test_only_folders_of_processes_that_are_gone_are_removed(base: Path) -> None:
    dead = make(base, f"stoker-{_NO_PID}-abc")
    mine = make(base, f"stoker-{os.getpid()}-abc")
    foreign = make(base, "stoker-something-else")

    assert dead in remove_dead_socket_folders()
    assert not dead.exists()
    assert mine.exists()
    assert foreign.exists()


def test_a_socket_that_answers_keeps_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    # Not below tmp_path: the path of a socket may not be long. Not in /tmp itself: a Stoker that
    # runs on this machine might remove the folder first.
    with tempfile.TemporaryDirectory(dir="/tmp") as base:
        monkeypatch.setattr(tempfile, "tempdir", base)
        folder = Path(base, f"stoker-{_NO_PID}-abc")
        folder.mkdir()
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(folder / "input"))
            server.listen()
            assert folder not in remove_dead_socket_folders()
            assert (folder / "input").exists()
        assert folder in remove_dead_socket_folders()
