"""What ends a line, what is no line, and how a wrong one is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import UsageError
from app.json_lines import read_json_lines


def read(path: Path, content: bytes) -> list[tuple[int, object]]:
    path.write_bytes(content)
    return list(read_json_lines(path, UsageError))


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", []),
        (b"\xef\xbb\xbf1\n", [(1, 1)]),
        (b'\n \r\n{"a": 1}\r\n[]', [(3, {"a": 1}), (4, [])]),
        ('"a\u2028b\x85c"\n2'.encode(), [(1, "a\u2028b\x85c"), (2, 2)]),
        (b'"\\u00e4"', [(1, "ä")]),
    ],
)
def test_a_line_feed_alone_ends_a_line(
    tmp_path: Path, content: bytes, found: list[tuple[int, object]]
) -> None:
    assert read(tmp_path / "lines", content) == found


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"1\n{\n", "^line 2 is not JSON: "),
        (b"1\n\n\xff\n", "^cannot be read: line 3 is no UTF-8$"),
        (b'"\\ud800"', "^line 1 is not JSON: "),
        (b"[NaN]", "^line 1 is not JSON: "),
        (b"[1e999]", "^line 1 is not JSON: "),
        (b"[" * 100_000, "^line 1 is nested too deeply$"),
        (b"9" * 5000, "^line 1 is not JSON: "),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read(tmp_path / "lines", content)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^cannot be read: .*No such file"):
        list(read_json_lines(tmp_path / "none", UsageError))


def test_lines_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"1\nwrong")
    assert next(read_json_lines(tmp_path / "lines", UsageError)) == (1, 1)


@given(st.binary(max_size=200))
def test_no_file_is_more_than_an_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    try:
        read(tmp_path_factory.getbasetemp() / "any_lines", content)
    except UsageError as error:
        assert "line" in str(error)  # noqa: PT017
