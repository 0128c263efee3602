from __future__ import annotations

from pathlib import Path

import pytest

from tui.state.tailer import LogTailer


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


def append(log: Path, text: str) -> None:
    with log.open("a") as file:
        file.write(text)


def test_waits_for_the_file_and_for_whole_lines(log: Path) -> None:
    tailer = LogTailer(log)
    assert tailer.read_new() == []
    append(log, "one\ntw")
    assert tailer.read_new() == ["one"]
    assert tailer.read_new() == []
    append(log, "o\nthree\n")
    assert tailer.read_new() == ["two", "three"]


def test_starts_near_the_end_at_a_line_border(log: Path) -> None:
    append(log, "".join(f"line {number}\n" for number in range(1000)))
    lines = LogTailer(log, first_read_bytes=25).read_new()
    assert lines == ["line 998", "line 999"]


def test_truncated_file_is_read_from_its_start(log: Path) -> None:
    append(log, "a long first line\n")
    tailer = LogTailer(log)
    tailer.read_new()
    log.write_text("new\n")
    assert tailer.read_new() == ["new"]


def test_replaced_file_is_read_from_its_start(log: Path) -> None:
    append(log, "old\n")
    tailer = LogTailer(log)
    tailer.read_new()
    log.rename(log.with_suffix(".1"))
    append(log, "first of the new\nsecond\n")
    assert tailer.read_new() == ["first of the new", "second"]


def test_end_of_a_file_that_is_rotated_away_is_not_lost(log: Path) -> None:
    append(log, "old\n")
    tailer = LogTailer(log)
    assert tailer.read_new() == ["old"]
    append(log, "last of the old\ncut")
    log.rename(log.with_suffix(".0"))
    append(log, "first of the new\n")
    found = tailer.read_new() + tailer.read_new()
    assert found == ["last of the old", "cut", "first of the new"]
    tailer.close()


def test_lines_are_safe_for_the_terminal(log: Path) -> None:
    log.write_bytes(b"\x1b]0;x\x07a\x1b[2J\tb \xff\nbar  0%\rbar 99%\n")
    assert LogTailer(log).read_new() == ["a       b �", "bar 99%"]
