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


def test_a_file_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with FollowedFile(log) as file:
        assert list(file.poll()) == []
        append(log, b"one\ntw")
        assert list(file.poll()) == ["one\n"]
        assert list(file.poll()) == []
        append(log, b"o\nthree\n")
        assert list(file.poll()) == ["two\n", "three\n"]


def test_a_file_that_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FollowedFile(tmp_path / "none.log").open()


def test_starts_near_the_end_at_a_line_border(log: Path) -> None:
    log.write_text("".join(f"line {number}\n" for number in range(1000)))
    with FollowedFile(log, last_bytes=25) as file:
        assert list(file.poll()) == ["line 998\n", "line 999\n"]
        log.rename(log.with_suffix(".1"))
        log.write_text("".join(f"new {number}\n" for number in range(10)))
        assert list(file.poll()) == [f"new {number}\n" for number in range(10)]


def test_one_look_reads_about_so_much_and_loses_nothing(log: Path) -> None:
    written = [f"line {number}\n" for number in range(100_000)]
    log.write_text("".join(written))
    with FollowedFile(log, most_bytes=1) as file:
        first = list(file.poll())
        log.rename(log.with_suffix(".1"))
        log.write_text("new\n")
        found = [*first, *(line for _ in range(10) for line in file.poll())]
    assert 0 < len(first) < len(written)
    assert found == [*written, "new\n"]


def test_end_of_a_file_that_is_rotated_away_is_not_lost(log: Path) -> None:
    with FollowedFile(log) as file:
        list(file.poll())
        append(log, b"last of the old\ncut")
        log.rename(log.with_suffix(".0"))
        append(log, b"first of the new\n")
        assert list(file.poll()) == ["last of the old\n", "cut", "first of the new\n"]
