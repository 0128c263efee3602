"""A followed file gives each line once, whatever happens to the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from logparse.reading.follow import FollowedFile


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "server.log"
    path.write_bytes(b"one\ntwo\n")
    return path


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_new_lines_come_when_they_are_whole(log: Path) -> None:
    with FollowedFile(log) as file:
        assert list(file.poll()) == ["one\n", "two\n"]
        append(log, b"thr")
        assert list(file.poll()) == []
        append(log, b"ee \xc3")
        append(log, b"\xa9\nfour")
        assert list(file.poll()) == ["three \u00e9\n"]
        assert list(file.rest()) == ["four"]
        assert list(file.rest()) == []


def test_rotation_by_renaming(log: Path) -> None:
    with FollowedFile(log) as file:
        list(file.poll())
        append(log, b"last of the old")
        log.rename(log.with_suffix(".1"))
        assert list(file.poll()) == []
        append(log.with_suffix(".1"), b", really\n")
        log.write_bytes(b"new\n")
        assert list(file.poll()) == ["last of the old, really\n", "new\n"]
        append(log, b"newer\n")
        assert list(file.poll()) == ["newer\n"]


def test_truncation(log: Path) -> None:
    with FollowedFile(log) as file:
        list(file.poll())
        os.truncate(log, 0)
        assert list(file.poll()) == []
        append(log, b"a\n")
        assert list(file.poll()) == ["a\n"]


def test_a_removed_file_is_waited_for(log: Path) -> None:
    with FollowedFile(log) as file:
        list(file.poll())
        log.unlink()
        assert list(file.poll()) == []
        log.write_bytes(b"back\n")
        assert list(file.poll()) == ["back\n"]
