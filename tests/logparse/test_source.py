from __future__ import annotations

import gzip
import io

import pytest

from logparse.source import decoded_lines

TEXT = "one\r\n\x1b[32mtwo\x1b[0m é\nbar 10%\rbar 100%\nlast"
LINES = ["one\r\n", "\x1b[32mtwo\x1b[0m é\n", "bar 10%\rbar 100%\n", "last"]


@pytest.mark.parametrize(
    "data",
    [
        TEXT.encode(),
        b"\xef\xbb\xbf" + TEXT.encode(),
        TEXT.encode("utf-16"),
        b"\xfe\xff" + TEXT.encode("utf-16-be"),
        gzip.compress(TEXT.encode()),
        gzip.compress(TEXT.encode("utf-16")),
    ],
    ids=["utf-8", "utf-8 with mark", "utf-16-le", "utf-16-be", "gzip", "gzip of utf-16"],
)
def test_the_same_lines_come_out_of_every_encoding(data: bytes) -> None:
    assert list(decoded_lines(io.BytesIO(data))) == LINES


def test_a_gzip_file_that_is_cut_off_gives_what_it_has() -> None:
    text = "".join(f"line {number} {number * 7919 % 10007}\n" for number in range(20_000))
    data = gzip.compress(text.encode())

    lines = list(decoded_lines(io.BytesIO(data[: len(data) // 2])))

    assert 1000 < len(lines) < 20_000
    assert text.startswith("".join(lines))


@pytest.mark.parametrize("data", [b"", b"\x1f\x8b", b"\xff\xfe", b"\x1f\x8b\x08\x00junk\nmore"])
def test_what_only_looks_like_a_log_is_no_crash(data: bytes) -> None:
    assert "".join(decoded_lines(io.BytesIO(data))) == ""
