"""Reads the files of one log that Stoker wrote: `X.log` is the newest, `X.log.0`... came before.

`X.log.head` are the first lines, once the part that held them is gone, and `X.log.gap` says how
much is missing after them.
"""

from __future__ import annotations

import contextlib
import glob
import io
import os
from collections import deque
from pathlib import Path
from typing import BinaryIO, cast

_BUFFER_BYTES = 1 << 20


def beside(path: Path, what: str) -> Path:
    """The name of a part."""
    return path.with_name(f"{path.name}.{what}")


def log_parts(path: Path) -> list[Path]:
    """The files of one log, oldest first; `path` is the last, and most logs have no other.

    Others number from 1, and the newest is that: what has no beginning of ours is not joined.
    """
    named = [one for one in (beside(path, "head"), beside(path, "gap")) if one.exists()]
    if not named and not beside(path, "0").exists():
        return [path]
    numbered = {
        int(other.suffix[1:]): other
        for other in path.parent.glob(f"{glob.escape(path.name)}.*")
        if other.stem == path.name and other.suffix[1:].isdecimal()
    }
    return [*named, *(numbered[number] for number in sorted(numbered)), path]


def open_parts(path: Path) -> list[BinaryIO]:
    """The same, opened; a part that is dropped meanwhile can still be read."""
    newest = path.open("rb")
    return [*_open_earlier(path, os.fstat(newest.fileno()).st_ino), newest]


def open_log(path: Path) -> BinaryIO:
    """The whole log as one stream."""
    parts = open_parts(path)
    return parts[0] if len(parts) == 1 else _joined(parts)


def read_earlier_parts(path: Path) -> BinaryIO:
    """What was rotated out of `path` so far, for those who follow the file itself."""
    return _joined(_open_earlier(path, -1))


def _open_earlier(path: Path, newest_inode: int) -> list[BinaryIO]:
    found: list[BinaryIO] = []
    for part in log_parts(path)[:-1]:
        with contextlib.suppress(FileNotFoundError):  # dropped a moment ago
            file = part.open("rb")
            if os.fstat(file.fileno()).st_ino == newest_inode:
                file.close()
            else:
                found.append(file)
    return found


def _joined(parts: list[BinaryIO]) -> BinaryIO:
    return cast(BinaryIO, io.BufferedReader(_Joined(parts), _BUFFER_BYTES))


class _Joined(io.RawIOBase):
    """Files one after the other."""

    def __init__(self, files: list[BinaryIO]) -> None:
        super().__init__()
        self._files = deque(files)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        """Fill from the file that is next."""
        view = memoryview(cast(bytearray, buffer))
        while self._files:
            data = self._files[0].read(len(view))
            if data:
                view[: len(data)] = data
                return len(data)
            self._files.popleft().close()
        return 0

    def close(self) -> None:
        """Close what was not read to its end."""
        while self._files:
            self._files.popleft().close()
        super().close()
