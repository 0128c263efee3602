from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import pytest

from app.supervise.ownerless_files import remove_ownerless_files

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

    assert dead in remove_ownerless_files()
    assert not dead.exists()
    assert mine.exists()
    assert foreign.exists()


def test_what_several_api_servers_counted_goes_with_their_folder(base: Path) -> None:
    dead = make(base, f"stoker-{_NO_PID}-abc")
    for name in ("counter_12.db", "gauge_mostrecent_12.db", "histogram_12.db", "summary_12.db"):
        (dead / name).write_bytes(b"\0" * 8)
    other = make(base, f"stoker-{_NO_PID}-def")
    (other / "notes_12.db").write_bytes(b"mine")

    assert dead in remove_ownerless_files()
    assert other.exists()


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
            assert folder not in remove_ownerless_files()
            assert (folder / "input").exists()
        assert folder in remove_ownerless_files()


def test_links_are_not_followed_and_what_is_no_socket_stays(tmp_path: Path, base: Path) -> None:
    victim = make(base, "of-somebody-else")
    link = base / f"stoker-{_NO_PID}-link"
    link.symlink_to(victim)
    mixed = make(base, f"stoker-{_NO_PID}-mixed")
    (mixed / "notes").write_text("mine")
    inside = make(base, f"stoker-{_NO_PID}-inside")
    (inside / "output").symlink_to(victim / "input")

    removed = remove_ownerless_files()

    assert {link, mixed, inside} & set(removed) == set()
    assert (victim / "input").exists()
    assert (mixed / "notes").read_text() == "mine"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_stays(base: Path) -> None:
    folder = make(base, f"stoker-{_NO_PID}-abc")
    os.chown(folder, 65534, 65534)

    assert folder not in remove_ownerless_files()
    assert folder.exists()


def test_segments_of_openmp_go_with_their_process(tmp_path: Path) -> None:
    dead, mine = (tmp_path / f"__KMP_REGISTERED_LIB_{pid}_0" for pid in (_NO_PID, os.getpid()))
    link = tmp_path / f"__KMP_REGISTERED_LIB_{_NO_PID}_1"
    for path in (dead, mine):
        path.touch()
    link.symlink_to(mine)

    assert set(remove_ownerless_files(tmp_path)) & {dead, mine, link} == {dead}
    assert mine.exists()
    assert not dead.exists()


def test_a_folder_that_was_made_just_now_may_be_another_containers(base: Path) -> None:
    folder = base / f"stoker-{_NO_PID}-new"
    folder.mkdir()
    assert folder not in remove_ownerless_files()
    os.utime(folder, (0, 0))
    assert folder in remove_ownerless_files()
