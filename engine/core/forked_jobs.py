"""A process that does each job in a child of its own, which the kernel ends at its limits.

For work on what a client sent that may take minutes or gigabytes in a call that nothing can
interrupt. A child gives back everything with its end. Jobs come on stdin and answers go to stdout,
both as length and msgpack; `job_process` is the other side.
"""

from __future__ import annotations

import os
import resource
import selectors
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, NoReturn, TypeVar

import msgspec
import psutil

T = TypeVar("T")

_HEAD = struct.Struct(">I")
_PIECE_BYTES = 1 << 18


class Job(msgspec.Struct, array_like=True, frozen=True):
    """Something to be done; without a body, give up the job of this number."""

    number: int
    body: bytes | None = None


class JobAnswer(msgspec.Struct, array_like=True, frozen=True):
    """What a job came to; without a body its child ended too early, with this wait status."""

    number: int
    body: bytes | None
    status: int = 0


@dataclass(frozen=True, slots=True)
class JobLimits:
    """What one child may take; `room_bytes` is address space beyond its parent's."""

    cpu_s: int
    wall_s: int
    room_bytes: int

    def is_too_slow(self, status: int) -> bool:
        """Whether a child of this wait status was ended for its time."""
        return _signal_of(status) in (signal.SIGXCPU, signal.SIGALRM, signal.SIGKILL)

    def is_too_large(self, status: int) -> bool:
        """Whether it gave up since there was no more memory."""
        return _signal_of(status) == signal.SIGABRT


def _signal_of(status: int) -> int:
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def write_frame(message: msgspec.Struct) -> bytes:
    """A message as it goes through a pipe."""
    payload = msgspec.msgpack.encode(message)
    return _HEAD.pack(len(payload)) + payload


class FrameReader:
    """Cuts what comes through a pipe into messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Payloads that are complete now."""
        self._data += data
        while len(self._data) >= _HEAD.size:
            end = _HEAD.size + _HEAD.unpack_from(self._data)[0]
            if len(self._data) < end:
                return
            yield bytes(self._data[_HEAD.size : end])
            del self._data[:end]


def serve_jobs(
    load: Callable[[bytes], T], attempt: Callable[[T, bytes], bytes], limits: JobLimits
) -> int:
    """Serve until stdin is closed; the exit code.

    `load` makes of the first message what all jobs share. `attempt` runs in the children: it makes
    an answer's body of a job's.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the API server decides what Ctrl-C means
    answers = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    _Parent(answers, load, attempt, limits).run()
    return 0


@dataclass(slots=True)
class _Child:
    number: int
    pid: int
    answer: bytearray


class _Parent(Generic[T]):
    def __init__(
        self,
        answers: int,
        load: Callable[[bytes], T],
        attempt: Callable[[T, bytes], bytes],
        limits: JobLimits,
    ) -> None:
        self._answers = answers
        self._load = load
        self._attempt = attempt
        self._limits = limits
        self._frames = FrameReader()
        self._selector = selectors.DefaultSelector()
        self._children: dict[int, _Child] = {}  # by the pipe that the answer comes through
        self._shared: T | None = None

    def run(self) -> None:
        self._selector.register(0, selectors.EVENT_READ)
        try:
            while True:
                for key, _ in self._selector.select():
                    if key.fd != 0:
                        self._collect(key.fd)
                    elif not self._receive():
                        return
        finally:
            for child in self._children.values():
                os.kill(child.pid, signal.SIGKILL)

    def _receive(self) -> bool:
        data = os.read(0, _PIECE_BYTES)
        for payload in self._frames.feed(data):
            if self._shared is None:
                self._shared = self._load(payload)
                continue
            job = msgspec.msgpack.decode(payload, type=Job)
            if job.body is None:
                self._give_up(job.number)
            else:
                self._start(self._shared, job.number, job.body)
        return bool(data)

    def _start(self, shared: T, number: int, body: bytes) -> None:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            self._do_and_exit(shared, body, writer)
        os.close(writer)
        self._children[reader] = _Child(number, pid, bytearray())
        self._selector.register(reader, selectors.EVENT_READ)

    def _do_and_exit(self, shared: T, body: bytes, writer: int) -> NoReturn:
        """All that the forked child does; it never returns into the parent's code."""
        try:
            # What a library writes when it gives up is for its authors.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            _set_limits(self._limits)
            _write_all(writer, self._attempt(shared, body))
        finally:
            os._exit(0)

    def _give_up(self, number: int) -> None:
        for child in self._children.values():
            if child.number == number:
                os.kill(child.pid, signal.SIGKILL)

    def _collect(self, reader: int) -> None:
        child = self._children[reader]
        if piece := os.read(reader, _PIECE_BYTES):
            child.answer += piece
            return
        del self._children[reader]
        self._selector.unregister(reader)
        os.close(reader)
        _, status = os.waitpid(child.pid, 0)
        is_whole = status == 0 and child.answer  # a signal may have cut it off
        answer = JobAnswer(child.number, bytes(child.answer) if is_whole else None, status)
        _write_all(self._answers, write_frame(answer))


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _set_limits(limits: JobLimits) -> None:
    for number in (signal.SIGXCPU, signal.SIGALRM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(limits.wall_s)
    if sys.platform == "linux":
        size = psutil.Process().memory_info().vms + limits.room_bytes
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (min(size, hard) if hard >= 0 else size, hard))
