from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.server_logs import log_sink
from app.server_logs.log_sink import LogSink, new_log_path


def drain(sink: LogSink, *chunks: bytes) -> None:
    reader, writer = os.pipe()
    for chunk in chunks:
        os.write(writer, chunk)
    os.close(writer)
    sink.drain(os.fdopen(reader, "rb", buffering=0))


def test_lines_are_kept_raw_and_told_one_by_one(tmp_path: Path) -> None:
    lines: list[str] = []
    sink = LogSink(tmp_path / "x.log", on_line=lines.append)

    drain(sink, b"first\nbar  50%\rbar 100%\r\nsec", b"ond \xff\nno end")

    assert (tmp_path / "x.log").read_bytes() == (
        b"first\nbar  50%\rbar 100%\r\nsecond \xff\nno end"
    )
    assert lines == ["first", "bar  50%", "bar 100%", "second \ufffd", "no end"]
    assert sink.tail(2) == ["second \ufffd", "no end"]
    assert (tmp_path / "x.log").stat().st_mode & 0o777 == 0o600


def test_a_secret_cut_by_two_reads_is_masked(tmp_path: Path) -> None:
    lines: list[str] = []
    sink = LogSink(tmp_path / "x.log", secrets=("sesame", ""), on_line=lines.append)

    drain(sink, b"the key is ses", b"ame today\n")

    assert lines == ["the key is *** today"]
    assert b"sesame" not in (tmp_path / "x.log").read_bytes()


def test_a_log_that_cannot_be_written_does_not_stop_the_draining() -> None:
    lines: list[str] = []
    sink = LogSink(Path("/dev/full"), on_line=lines.append)

    drain(sink, b"one\ntwo\n")

    assert lines == ["one", "two"]
    assert sink.write_error == "No space left on device"


def test_log_names(tmp_path: Path) -> None:
    path = new_log_path(tmp_path, "org/model name")
    path.touch()

    assert path.name.startswith("org_model_name-")
    assert path.suffix == ".log"
    assert path.parent == tmp_path


def test_only_the_cut_line_is_missing_after_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_sink, "_BACKLOG_BYTES", 30)
    lines: list[str] = []
    feed = log_sink._LineFeed(lines.append)
    for block in (b"forgotten\n", b"whole line\n", b"next\n", b"and the last\n"):
        feed.put(block)  # nobody reads yet: the oldest is forgotten, and it ended its line
    feed.start()
    feed.finish()
    assert lines == ["whole line", "next", "and the last"]

    lines.clear()
    feed = log_sink._LineFeed(lines.append)
    for block in (b"forgotten, cut", b" here\nwhole line\n", b"and the last\n"):
        feed.put(block)
    feed.start()
    feed.finish()
    assert lines == ["whole line", "and the last"]


def test_a_log_that_cannot_be_made_is_made_later(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    sink = LogSink(folder / "x.log")
    assert sink.write_error == "No such file or directory"
    folder.mkdir()
    drain(sink, b"one\n")
    assert (folder / "x.log").read_bytes() == b"one\n"
