"""Records traffic without its texts, in Mooncake's trace format: `stoker bench --replay` reads it.

A line for each request that the engine got, once it is over: when it came, how long prompt and
answer were, and an id for each block of the prompt, the same for equal beginnings. The ids come of
a key that is never written: who has the file cannot try whether a text that he knows was asked.
Owns the file. Nothing that happens to it reaches a request: lines are written in a thread of their
own, and dropped where that cannot keep up.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine.env import PROBE_SALT
from engine.errors import ConfigError
from engine.logger import get_logger
from engine.messages import EngineCoreRequest, ImageInput
from engine.sched.block_hash import hash_block, image_keys

logger = get_logger(__name__)

KEY_BYTES = 32
_ID_BYTES = 6  # JSON's numbers are exact up to 53 bits
_BEGINNING = b'{"block_size": '  # of every line that is written, and of no other tool's
_LONGEST_LINE = 64 << 20
_MOST_WAITING_TOKENS = 1 << 20  # of prompts whose lines are not written yet
_LAST_LINES_S = 2.0


@dataclass(frozen=True, slots=True)
class TrafficFile:
    """Where to, and how large it may become; `key` is that of all API servers of one start."""

    path: str
    max_bytes: int
    key: bytes


@dataclass(frozen=True, slots=True)
class _Request:
    arrival_s: float  # unix time
    token_ids: Sequence[int]
    num_output_tokens: int
    salt: str | None
    images: tuple[ImageInput, ...]


class TrafficRecorder:
    """Takes requests as they come and end, from one thread; ConfigError for a file that it cannot
    continue.
    """

    def __init__(self, file: TrafficFile, block_size: int) -> None:
        self._file = _LineFile(file.path, file.max_bytes)
        self._key, self._block_size = file.key, block_size
        self._arrivals: dict[str, float] = {}
        self._ended: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # of the next two
        self._waiting_tokens = self._num_dropped = 0
        self._thread = threading.Thread(target=self._run, daemon=True, name="traffic-recorder")
        self._thread.start()

    def note_arrival(self, request: EngineCoreRequest) -> None:
        """A request goes to the engine. A trace is of generation, so embeddings are left out."""
        if request.pooling is None and request.cache_salt != PROBE_SALT:
            self._arrivals[request.request_id] = time.time()

    def note_end(self, request: EngineCoreRequest, num_output_tokens: int) -> None:
        """The same request is over, also one that was given up or has failed."""
        arrival_s = self._arrivals.pop(request.request_id, None)
        if arrival_s is None:
            return
        token_ids = request.prompt_token_ids
        with self._lock:
            if self._waiting_tokens > _MOST_WAITING_TOKENS:
                self._num_dropped += 1
                return
            self._waiting_tokens += len(token_ids)
        images = tuple(msgspec.structs.replace(image, pixels=b"") for image in request.images)
        self._ended.put(
            _Request(arrival_s, token_ids, num_output_tokens, request.prefix_salt, images)
        )

    def close(self) -> None:
        """Write what is left; a disk that hangs is not waited for long."""
        self._ended.put(None)
        self._thread.join(_LAST_LINES_S)

    def _run(self) -> None:
        while (request := self._ended.get()) is not None:
            line = _line(request, self._key, self._block_size)
            with self._lock:
                num_dropped, self._num_dropped = self._num_dropped, 0
            self._file.append(line, num_dropped)
            with self._lock:
                self._waiting_tokens -= len(request.token_ids)
        self._file.close()


def check_traffic_file(path: str | None) -> None:
    """Make the file before the model loads; ConfigError where it cannot be continued."""
    if path is not None:
        _LineFile(path, 0).close()


def _line(request: _Request, key: bytes, block_size: int) -> bytes:
    fields = {
        "block_size": block_size,
        "timestamp": round(request.arrival_s * 1e3),
        "input_length": len(request.token_ids),
        # At least one: what was given up before its first token had asked for one.
        "output_length": max(1, request.num_output_tokens),
        "hash_ids": list(_block_ids(request, key, block_size)),
    }
    return json.dumps(fields).encode() + b"\n"


def _block_ids(request: _Request, key: bytes, size: int) -> Iterator[int]:
    """One for each block, the last of which may be shorter; each stands for all before it too."""
    parent = key
    for start in range(0, len(request.token_ids), size):
        salt = None if start else request.salt
        images = image_keys(request.images, start, size)
        parent = hash_block(parent, request.token_ids[start : start + size], salt, images)
        yield int.from_bytes(parent[:_ID_BYTES], "big")


class _LineFile:
    """A private file of lines that several processes append to. What cannot be written is counted
    and said, never raised.
    """

    def __init__(self, path: str, max_bytes: int) -> None:
        self._num_lost = 0  # lines, since that was last said
        self._path, self._max_bytes = Path(path), max_bytes
        self._has_failed = self._is_full = False
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise _not_writable(path, error) from error
        try:
            with self._alone():
                self._drop_cut_line()
        except OSError as error:
            os.close(self._descriptor)
            raise _not_writable(path, error) from error
        except ConfigError:
            os.close(self._descriptor)
            raise

    def append(self, line: bytes, num_lost_before: int = 0) -> None:
        """Write it whole or not at all; other lines before it never came here."""
        self._num_lost += num_lost_before
        if self._is_full:
            return
        try:
            with self._alone():
                self._write(line)
        except OSError as error:
            self._num_lost += 1
            if not self._has_failed:
                reason = error.strerror or error
                logger.warning("The traffic record %s cannot be written: %s.", self._path, reason)
            self._has_failed = True
            return
        self._has_failed = False
        if self._num_lost:
            logger.warning("The traffic record %s lacks %d request(s).", self._path, self._num_lost)
            self._num_lost = 0

    def close(self) -> None:
        os.close(self._descriptor)

    def _write(self, line: bytes) -> None:
        size = os.fstat(self._descriptor).st_size
        if size + len(line) > self._max_bytes:
            self._is_full = True
            logger.warning(
                "The traffic record %s ends here: it has reached the %d bytes of "
                "--record-traffic-max-bytes.",
                self._path,
                self._max_bytes,
            )
            return
        written = os.write(self._descriptor, line)
        if written < len(line):
            os.ftruncate(self._descriptor, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _drop_cut_line(self) -> None:
        """A writer that was killed may have left the beginning of a line; ConfigError for a file of
        another kind.
        """
        size = os.fstat(self._descriptor).st_size
        head = os.pread(self._descriptor, len(_BEGINNING), 0)
        start = max(0, size - _LONGEST_LINE)
        end = os.pread(self._descriptor, size - start, start).rfind(b"\n") + 1
        if not _BEGINNING.startswith(head) or (start and not end):
            raise ConfigError(
                f"--record-traffic {self._path} is there and is no traffic record; name another "
                "file."
            )
        if start + end < size:
            os.ftruncate(self._descriptor, start + end)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)


def _not_writable(path: str, error: OSError) -> ConfigError:
    return ConfigError(
        f"--record-traffic {path} cannot be written: {error.strerror}; name a file in a folder "
        "that this user may write to."
    )
