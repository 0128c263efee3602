"""Reads a text file that is to go to the model; refuses what is too long or not text."""

from __future__ import annotations

import stat
from pathlib import Path

from app.client.chat.turns import Attachment
from app.client.terminal_text import strip_escapes

MAX_ATTACHMENT_BYTES = 512 * 1024


class AttachmentError(Exception):
    """The file cannot be attached; `str()` says why, and what would do."""


def read_attachment(path: Path, limit_bytes: int = MAX_ATTACHMENT_BYTES) -> Attachment:
    """The file's text, without control characters."""
    path = path.expanduser()
    try:
        # A pipe or a device would be read for ever, or would block the screen.
        if not stat.S_ISREG(path.stat().st_mode):
            raise AttachmentError(f"{path} is not a file")
        with path.open("rb") as file:
            data = file.read(limit_bytes + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise AttachmentError(f"cannot read {path}: {reason}") from error
    if len(data) > limit_bytes:
        raise AttachmentError(
            f"{path} is longer than {limit_bytes // 1024} KiB, the limit; attach a part of it"
        )
    return Attachment(strip_escapes(path.name), strip_escapes(_text(path, data)))


def _text(path: Path, data: bytes) -> str:
    refusal = f"{path} is not a text file in UTF-8; convert it first"
    if b"\0" in data:
        raise AttachmentError(refusal)
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").rstrip("\n")
    except UnicodeDecodeError as error:
        raise AttachmentError(refusal) from error
