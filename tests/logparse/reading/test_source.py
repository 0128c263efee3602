from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import sys

import pytest

from logparse.reading.source import SourceError, decoded_lines

TEXT = "one\r\n\x1b[32mtwo\x1b[0m é\nbar 10%\rbar 100%\nlast"
LINES = ["one\r\n", "\x1b[32mtwo\x1b[0m é\n", "bar 10%\rbar 100%\n", "last"]


@pytest.mark.parametrize(
    "data",
    [
        TEXT.encode(),
        b"\xef\xbb\xbf" + TEXT.encode(),
        TEXT.encode("utf-16"),
        b"\xfe\xff" + TEXT.encode("utf-16-be"),
        TEXT.encode("utf-16-le"),
        TEXT.encode("utf-16-be"),
        gzip.compress(TEXT.encode()),
        gzip.compress(TEXT.encode("utf-16")),
    ],
    ids=[
        "utf-8",
        "utf-8 with mark",
        "utf-16-le",
        "utf-16-be",
        "utf-16-le without mark",
        "utf-16-be without mark",
        "gzip",
        "gzip of utf-16",
    ],
)
def test_the_same_lines_come_out_of_every_encoding(data: bytes) -> None:
    assert list(decoded_lines(io.BytesIO(data))) == LINES


def test_a_gzip_file_that_is_cut_off_gives_what_it_has() -> None:
    text = "".join(f"line {number} {number * 7919 % 10007}\n" for number in range(20_000))
    data = gzip.compress(text.encode())

    lines = list(decoded_lines(io.BytesIO(data[: len(data) // 2])))

    assert 1000 < len(lines) < 20_000
    assert text.startswith("".join(lines))


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"\x1f\x8b\x08\x00junk\nmore"])
def test_what_only_looks_like_a_log_is_no_crash(data: bytes) -> None:
    assert "".join(decoded_lines(io.BytesIO(data))) == ""


def packed_with_zstd(data: bytes) -> bytes:
    return subprocess.run(["zstd", "-qc"], input=data, capture_output=True, check=True).stdout


@pytest.mark.skipif(shutil.which("zstd") is None, reason="the program zstd is not here")
def test_a_zstd_file_and_one_that_is_cut_off() -> None:
    text = "".join(f"line {number} {number * 7919 % 10007}\n" for number in range(200_000))
    data = packed_with_zstd(text.encode())
    assert "".join(decoded_lines(io.BytesIO(data))) == text

    lines = list(decoded_lines(io.BytesIO(data[: len(data) // 2])))
    assert 1000 < len(lines) < 200_000
    assert text.startswith("".join(lines))


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python brings zstd itself")
def test_zstd_without_the_program_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SourceError, match="install the program zstd"):
        list(decoded_lines(io.BytesIO(b"\x28\xb5\x2f\xfdrest")))


def test_a_pipe_is_read_as_it_comes() -> None:
    reading, writing = os.pipe()
    with open(reading, "rb") as stream, open(writing, "wb", buffering=0) as out:
        out.write(b"first line\nhalf")
        lines = decoded_lines(stream)
        assert next(lines) == "first line\n"


def test_lines_longer_than_a_chunk_stay_whole() -> None:
    text = "a" * 200_000 + "\n" + "\u00e9" * 100_000 + "\n"
    assert list(decoded_lines(io.BytesIO(text.encode()))) == text.splitlines(keepends=True)
