from __future__ import annotations

import os
from pathlib import Path

from app.ops.log_sink import LogSink, new_log_path


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
