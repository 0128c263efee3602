"""Packed weights on disk: a later start reads them instead of loading and packing the checkpoint.

An entry belongs to the checkpoint's files as they are (path, size, time), the C++ that packed them
and what it packed for. Whatever goes wrong here costs a log line and the saving, never the start.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import shutil
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from engine.env import user_cache_dir
from engine.errors import ConfigError
from engine.logger import get_logger
from engine.machine.locks import file_lock
from engine.machine.ownership import distrust, make_private
from engine.machine.sizes import GIB

logger = get_logger(__name__)

LIMIT_VARIABLE = "STOKER_PACKED_CACHE_GIB"

_DEFAULT_LIMIT_GIB = 16.0
_WORTH_IT_BYTES = 32 << 20  # below it packing takes no time
_FORMAT = 1
_HEADER_BYTES = 4096  # parts begin at multiples of it
_SAMPLE_BYTES, _SAMPLE_STEP = 4096, 1 << 20  # of each part, in the checksum
_PIECE_BYTES = 16 << 20
_LOWEST_PRIORITY = 19
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_SUFFIX, _PARTIAL = ".packed", ".partial"


@dataclass(frozen=True, slots=True)
class PackedFile:
    """An entry as it lies on disk, mapped; `parts` are views of it, at `offsets` of the file."""

    path: Path
    parts: tuple[memoryview, ...]
    offsets: tuple[int, ...]


class _OtherWriterError(Exception):
    """Another start writes: most likely the same."""


def _leave() -> None:
    raise _OtherWriterError


class PackedCache:
    """Entries in one folder, which together stay below `max_bytes`; the least used go first."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes

    @classmethod
    def of_user(cls) -> PackedCache:
        """`packed` in Stoker's cache folder, as large as STOKER_PACKED_CACHE_GIB says."""
        asked = os.environ.get(LIMIT_VARIABLE, "")
        try:
            limit = float(asked) if asked else _DEFAULT_LIMIT_GIB
        except ValueError:
            raise ConfigError(
                f"{LIMIT_VARIABLE}={asked} is not a number; give GiB, or 0 for no cache."
            ) from None
        return cls(user_cache_dir() / "packed", int(limit * GIB))

    def open(self, key: str) -> PackedFile | None:
        """The entry, if there is a whole one that nobody else could write; a damaged one goes."""
        path = self._path(key)
        if path.exists() and (fault := distrust(path)) is not None:
            logger.warning("Packed weights are not used: %s.", fault)
            return None
        try:
            with path.open("rb") as file:
                # A private copy on write: nothing here writes, but numpy and torch want to be able.
                memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            found = _checked(path, memory, key)
            os.utime(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            logger.warning("Packed weights in %s are not used: %s.", path, _reason(error))
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        return found

    def store_later(self, key: str, parts: Callable[[], Sequence[memoryview]]) -> None:
        """The same as `store` from a thread, while the server starts to serve.

        Whoever owns the memory must live as long as `parts`. The end of the program cuts it short.
        """

        def run() -> None:
            if sys.platform == "linux":  # where a thread has a priority of its own
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
            self.store(key, parts())

        threading.Thread(target=run, name="packed-weights").start()

    def store(self, key: str, parts: Sequence[memoryview]) -> None:
        """Write an entry in one piece, or log why not."""
        size = sum(_padded(part.nbytes) for part in parts) + _HEADER_BYTES
        if size < _WORTH_IT_BYTES or self._max_bytes == 0:
            return
        start = time.monotonic()
        try:
            make_private(self._folder)
            if (fault := distrust(self._folder)) is not None:
                raise PermissionError(str(fault))
            with file_lock(self._folder / "write.lock", _leave):
                self._remove_replaced(key)
                self._make_room(size)
                self._write(key, parts)
        except _OtherWriterError:
            return
        except OSError as error:
            logger.info("Packed weights are not kept for the next start: %s.", _reason(error))
            return
        taken = time.monotonic() - start
        logger.info("Keeping packed weights for the next start took %.2f seconds", taken)

    def _path(self, key: str) -> Path:
        return self._folder / (key + _SUFFIX)

    def _remove_replaced(self, key: str) -> None:
        for left in self._folder.glob("*" + _PARTIAL):  # of a start that was killed
            left.unlink()
        for path in self._folder.glob(f"{key.partition('-')[0]}-*{_SUFFIX}"):
            path.unlink()

    def _make_room(self, size: int) -> None:
        if size > self._max_bytes:
            raise OSError(
                f"they take {size / GIB:.1f} GiB, and {LIMIT_VARIABLE} allows "
                f"{self._max_bytes / GIB:.1f}"
            )
        entries = sorted((path.stat().st_mtime, path) for path in self._folder.glob("*" + _SUFFIX))
        total = sum(path.stat().st_size for _, path in entries)
        for _, path in entries:
            if total + size <= self._max_bytes:
                break
            total -= path.stat().st_size
            path.unlink()
            logger.info("Removed packed weights %s: the cache is full.", path)
        free = shutil.disk_usage(self._folder).free
        if free < 2 * size:  # the disk is not ours alone
            raise OSError(f"{self._folder} has only {free / GIB:.1f} GiB left")

    def _write(self, key: str, parts: Sequence[memoryview]) -> None:
        target = self._path(key)
        partial = target.with_suffix(_PARTIAL)
        try:
            with os.fdopen(os.open(partial, _NEW_FILE, 0o600), "wb") as file:
                file.write(_header(key, parts))
                for part in parts:
                    _write_part(file, part)
                    file.write(bytes(_padded(part.nbytes) - part.nbytes))
            os.replace(partial, target)
        except OSError:
            partial.unlink(missing_ok=True)
            raise


def _write_part(file: BinaryIO, part: memoryview) -> None:
    for start in range(0, part.nbytes, _PIECE_BYTES):
        if not threading.main_thread().is_alive():
            raise OSError("the server stops")
        file.write(part[start : start + _PIECE_BYTES])


def packed_key(files: Iterable[Path], facts: object, build: str) -> str:
    """Name of an entry: what it is for, a dash, and of which state of the files and the C++.

    An entry replaces those whose names begin alike.
    """
    paths = sorted(path.absolute() for path in files)
    states = [(path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    return f"{_short_hash([*map(str, paths), facts])}-{_short_hash([_FORMAT, states, build])}"


def _short_hash(facts: object) -> str:
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _header(key: str, parts: Sequence[memoryview]) -> bytes:
    facts = {
        "format": _FORMAT,
        "key": key,
        "sizes": [part.nbytes for part in parts],
        "samples": [_samples(part) for part in parts],
    }
    line = json.dumps(facts).encode()
    digest = hashlib.sha256(line).hexdigest().encode()
    return (digest + b"\n" + line + b"\n").ljust(_HEADER_BYTES, b"\0")


def _checked(path: Path, memory: mmap.mmap, key: str) -> PackedFile:
    """ValueError says what is wrong."""
    digest, _, rest = memory[:_HEADER_BYTES].partition(b"\n")
    line = rest.partition(b"\n")[0]
    if hashlib.sha256(line).hexdigest().encode() != digest:
        raise ValueError("the header is damaged")
    facts = json.loads(line)
    if facts["key"] != key:
        raise ValueError("they belong to another model")
    offsets, end = [], _HEADER_BYTES
    for size in facts["sizes"]:
        offsets.append(end)
        end += _padded(size)
    if len(memory) != end:
        raise ValueError(f"the file has {len(memory)} bytes instead of {end}")
    view = memoryview(memory)
    parts = tuple(
        view[offset : offset + size] for offset, size in zip(offsets, facts["sizes"], strict=True)
    )
    if [_samples(part) for part in parts] != facts["samples"]:
        raise ValueError("the contents are damaged")
    return PackedFile(path, parts, tuple(offsets))


def _samples(part: memoryview) -> int:
    """Checksum of a few bytes in each MiB: finds pages that never reached the disk."""
    checksum = 0
    for start in range(0, part.nbytes, _SAMPLE_STEP):
        checksum = zlib.crc32(part[start : start + _SAMPLE_BYTES], checksum)
    return checksum


def _padded(size: int) -> int:
    return -(-size // _HEADER_BYTES) * _HEADER_BYTES


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
