"""Bytes to lines: newline is the only separator, so that carriage returns and line numbers stay
true. Packed logs (gzip, zstd) and those of PowerShell's `>` (UTF-16) are read as they lie.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib
import importlib.util
import io
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO, cast

_CHUNK = 1 << 16
_MAX_LINE = 4 * 1024 * 1024  # a longer line is read in pieces
_GZIP = b"\x1f\x8b\x08"
_ZSTD = b"\x28\xb5\x2f\xfd"
_UTF16 = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
_ENOUGH_TO_TELL = 4
_PAIRS = 40  # bytes


class SourceError(Exception):
    """The log cannot be read here; the text says what to install."""


def decoded_lines(stream: BinaryIO) -> Iterator[str]:
    """Lines of a binary stream; bytes that are no text become replacement characters."""
    chunks = _chunks(stream)
    head = b""
    for chunk in chunks:
        head += chunk
        if len(head) >= _ENOUGH_TO_TELL:
            break
    if head.startswith(_GZIP):
        unpacked = gzip.GzipFile(fileobj=cast(BinaryIO, _Rejoined(head, chunks)))
        yield from _until_damage(decoded_lines(cast(BinaryIO, unpacked)))
    elif head.startswith(_ZSTD):
        with _unpacked_zstd(_Rejoined(head, chunks)) as unpacked_zstd:
            yield from _until_damage(decoded_lines(unpacked_zstd))
    elif encoding := _UTF16.get(head[:2]) or _unmarked_utf16(head):
        body = head[2:] if head[:2] in _UTF16 else head
        text = io.TextIOWrapper(
            io.BufferedReader(_Rejoined(body, chunks)), encoding, "replace", newline="\n"
        )
        while line := text.readline(_MAX_LINE):
            yield line
    else:
        lines = _utf8_lines(head, chunks)
        for first in lines:
            yield first.removeprefix("\ufeff")
            break
        yield from lines


def _unmarked_utf16(head: bytes) -> str | None:
    """The encoding of text in pairs of bytes that a copy left without its first mark."""
    first, second = head[0:_PAIRS:2], head[1:_PAIRS:2]
    if len(head) < _PAIRS:
        return None
    if not any(second) and all(first):
        return "utf-16-le"
    return "utf-16-be" if not any(first) and all(second) else None


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    """What has come so far, at once: a pipe is not waited for until a chunk is full."""
    read = getattr(stream, "read1", stream.read)
    while chunk := read(_CHUNK):
        yield chunk


def _utf8_lines(head: bytes, chunks: Iterator[bytes]) -> Iterator[str]:
    pending = head
    while True:
        end = pending.rfind(b"\n") + 1
        if end:
            # Only newlines end a line; BytesIO splits at them without work in Python.
            for line in io.BytesIO(pending[:end]):
                yield line.decode("utf-8", "replace")
            pending = pending[end:]
        if len(pending) > _MAX_LINE:
            yield pending.decode("utf-8", "replace")
            pending = b""
        chunk = next(chunks, b"")
        if not chunk:
            break
        pending += chunk
    if pending:
        yield pending.decode("utf-8", "replace")


def _until_damage(lines: Iterator[str]) -> Iterator[str]:
    """A packed file that is still being written, or cut off, is read as far as it goes."""
    try:
        yield from lines
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return


@contextlib.contextmanager
def _unpacked_zstd(packed: io.RawIOBase) -> Iterator[BinaryIO]:
    """Through Python's own module where there is one (3.14), else through the program `zstd`."""
    if importlib.util.find_spec("compression") is not None:
        zstd = importlib.import_module("compression.zstd")
        with contextlib.suppress(zstd.ZstdError):
            yield zstd.ZstdFile(packed)
        return
    program = shutil.which("zstd")
    if program is None:
        raise SourceError("this log is packed with zstd: install the program zstd, or unpack it")
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(io.BufferedReader(packed), copy)
        copy.seek(0)
        with subprocess.Popen(
            [program, "-dcqf"],
            env={},  # it needs nothing of ours, least of all a token
            stdin=copy,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            assert process.stdout is not None
            yield cast(BinaryIO, process.stdout)
            process.stdout.close()


class _Rejoined(io.RawIOBase):
    """A stream with the bytes put back that were read to see what it is."""

    def __init__(self, head: bytes, rest: Iterator[bytes]) -> None:
        super().__init__()
        self._ready = head
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        """Fill `buffer`, the head first."""
        view = memoryview(cast(bytearray, buffer))
        data = self._ready or next(self._rest, b"")
        taken = data[: len(view)]
        self._ready = data[len(view) :]
        view[: len(taken)] = taken
        return len(taken)
