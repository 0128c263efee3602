"""What is believed and what is not; as root the owners are real ones."""

from __future__ import annotations

import grp
import os
import pwd
import tempfile
from pathlib import Path

import pytest

from engine.machine import ownership
from engine.machine.ownership import distrust, make_private, own_distrust, temporary_base

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    deep = tmp_path / "cache" / "kernels"
    make_private(deep)
    return deep


def test_own_files_are_believed_and_missing_ones_are_no_fault(folder: Path) -> None:
    (folder / "step.so").write_text("")

    assert distrust(folder / "step.so") is None
    assert distrust(folder / "a" / "b") is None
    assert folder.parent.stat().st_mode & 0o777 == 0o700


def test_a_file_in_the_way_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        make_private(tmp_path / "file")
    with pytest.raises(NotADirectoryError):
        make_private(tmp_path / "file" / "a" / "b")


@pytest.mark.parametrize("mode", [0o777, 0o702, 0o722])
def test_what_others_can_write_is_not(folder: Path, mode: int) -> None:
    library = folder / "step.so"
    library.write_text("")
    for fault in (library, folder, folder.parent):
        before = fault.stat().st_mode
        fault.chmod(mode)
        found = distrust(library)
        fault.chmod(before)

        assert found is not None
        assert found.path == fault
        assert found.remedy == f"chmod go-w {fault}"


def test_a_sticky_folder_above_is_as_good_as_tmp(folder: Path) -> None:
    folder.parent.chmod(0o1777)
    assert distrust(folder / "step.so") is None

    folder.chmod(0o1777)  # others could add a library here
    assert distrust(folder) is not None


def test_the_group_of_the_users_own_name_may_write(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = pwd.getpwuid(os.geteuid()).pw_name
    folder.chmod(0o770)
    for name, members, is_private in (
        (mine, [], True),
        (mine, ["ada"], False),
        ("staff", [], False),
    ):
        group = grp.struct_group((name, "x", folder.stat().st_gid, members))
        monkeypatch.setattr(grp, "getgrgid", lambda _, group=group: group)
        assert (distrust(folder) is None) is is_private


@needs_root
def test_another_users_file_folder_or_link_is_not(folder: Path) -> None:
    library = folder / "step.so"
    library.write_text("")
    for path in (library, folder, folder.parent):
        os.chown(path, NOBODY, -1)
        found = distrust(library)
        os.chown(path, 0, -1)
        assert found is not None
        assert (found.path, found.reason[:23]) == (path, "belongs to another user")

    link = folder.parent / "link"
    link.symlink_to(folder)
    os.chown(link, NOBODY, -1, follow_symlinks=False)
    assert (found := distrust(link / "step.so")) is not None
    assert found.path == link


def test_a_link_does_not_hide_where_it_leads(folder: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (folder / "link").symlink_to(shared)

    assert (found := distrust(folder / "link")) is not None
    assert found.path.name in ("shared", "link")
    assert own_distrust(folder) is None


def test_temporary_files_go_where_nobody_can_swap_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_to_all = tmp_path / "scratch"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(open_to_all))
    assert temporary_base() in ("/tmp", "/var/tmp")

    monkeypatch.setattr(ownership, "_temporary_bases", lambda: iter([str(open_to_all)]))
    with pytest.raises(PermissionError, match="can be changed by other users"):
        temporary_base()
