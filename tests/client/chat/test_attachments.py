"""Files that go with a question, and files that are refused."""

from __future__ import annotations

import base64
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


@pytest.mark.parametrize(
    ("head", "media_type"),
    [
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "image/webp"),
    ],
)
def test_an_image_is_known_by_its_beginning_and_sent_as_it_is(
    tmp_path: Path, head: bytes, media_type: str
) -> None:
    path = tmp_path / "picture.txt"
    path.write_bytes(head + bytes(3000))
    attachment = read_attachment(path, limit_bytes=20)
    assert (attachment.is_image, attachment.text, attachment.media_type) == (True, "", media_type)
    assert base64.b64decode(attachment.data) == path.read_bytes()
    assert attachment.size == f"{media_type}, 3 KiB"
    with pytest.raises(AttachmentError, match="longer than 1 KiB, the limit; make the image small"):
        read_attachment(path, image_limit_bytes=1024)


def test_what_is_called_an_image_and_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.PNG"
    path.write_text("hello")
    with pytest.raises(AttachmentError, match="is no image: it does not begin like PNG, JPEG"):
        read_attachment(path)
    (tmp_path / "b.bmp").write_bytes(b"BM\0\0")
    with pytest.raises(AttachmentError, match="and no PNG, JPEG, WebP or GIF image"):
        read_attachment(tmp_path / "b.bmp")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, said in (("pipe", "not a file"), ("", "not a file"), ("none", "No such file")):
        with pytest.raises(AttachmentError, match=said):
            read_attachment(tmp_path / name)
