"""Reads a text or an image that is to go to the model; refuses what is neither, or too long."""

from __future__ import annotations

import base64
import stat
from pathlib import Path

from app.client.chat.turns import Attachment
from app.client.terminal_text import strip_escapes

MAX_ATTACHMENT_BYTES = 512 * 1024
MAX_IMAGE_BYTES = 20 << 20
"""What our own server takes; others may take less, and say so."""

_IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif")
_KINDS = "PNG, JPEG, WebP or GIF"
_HEAD_BYTES = 16


class AttachmentError(Exception):
    """The file cannot be attached; `str()` says why, and what would do."""


def read_attachment(
    path: Path,
    limit_bytes: int = MAX_ATTACHMENT_BYTES,
    image_limit_bytes: int = MAX_IMAGE_BYTES,
) -> Attachment:
    """The file's text, without control characters, or the image as it is."""
    path = path.expanduser()
    try:
        # A pipe or a device would be read for ever, or would block the screen.
        if not stat.S_ISREG(path.stat().st_mode):
            raise AttachmentError(f"{path} is not a file")
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
            media_type = _media_type(head)
            limit = limit_bytes if media_type is None else image_limit_bytes
            data = head + file.read(limit + 1 - len(head))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise AttachmentError(f"cannot read {path}: {reason}") from error
    if len(data) > limit:
        what = "attach a part of it" if media_type is None else "make the image smaller"
        raise AttachmentError(f"{path} is longer than {_size(limit)}, the limit; {what}")
    name = strip_escapes(path.name)
    if media_type is not None:
        return Attachment(name, "", media_type, base64.b64encode(data).decode("ascii"))
    if path.suffix.lower() in _IMAGE_SUFFIXES:
        raise AttachmentError(f"{path} is no image: it does not begin like {_KINDS}")
    return Attachment(name, strip_escapes(_text(path, data)))


def _media_type(head: bytes) -> str | None:
    """What kind of image begins like this; None for no image."""
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if head.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "image/webp"
    return None


def _size(num_bytes: int) -> str:
    return f"{num_bytes >> 20} MiB" if num_bytes >= 1 << 20 else f"{num_bytes // 1024} KiB"


def _text(path: Path, data: bytes) -> str:
    refusal = f"{path} is not a text file in UTF-8, and no {_KINDS} image; convert it first"
    if b"\0" in data:
        raise AttachmentError(refusal)
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").rstrip("\n")
    except UnicodeDecodeError as error:
        raise AttachmentError(refusal) from error
