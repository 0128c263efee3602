"""Text files that go with a question, and files that are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.client.chat.attachments import AttachmentError, read_attachment


def test_a_text_file_is_read_without_control_characters(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\n\x1b[31mtwo\n")
    attachment = read_attachment(path)
    assert (attachment.name, attachment.text) == ("a.txt", "one\ntwo")


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"a\x00b", "not a text file"), (b"\xff\xfe", "not a text file"), (b"x" * 21, "the limit")],
)
def test_what_is_no_text_or_too_long_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(data)
    with pytest.raises(AttachmentError, match=said):
        read_attachment(path, limit_bytes=20)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, said in (("pipe", "not a file"), ("", "not a file"), ("none", "No such file")):
        with pytest.raises(AttachmentError, match=said):
            read_attachment(tmp_path / name)
