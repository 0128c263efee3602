"""The process that tries grammars before a request is queued: each in a child of its own.

A grammar of a few characters can take minutes and gigabytes to compile, in a call that nothing can
interrupt. A child is ended by the kernel at its limits, and gives back everything with its end.
Reads CheckRequests on stdin, writes CheckReplies on stdout; both as length and msgpack.
"""

from __future__ import annotations

import os
import resource
import selectors
import signal
import struct
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import psutil

from engine.core.grammar import GrammarModel, grammar_error, load_tokenizer, plain_reason
from engine.sampling_params import StructuredOutputsParams

if TYPE_CHECKING:
    from llguidance import LLTokenizer

LIMIT_CPU_S = 3
LIMIT_BYTES = 64 << 20
"""Memory of one compiled grammar."""

_LIMIT_WALL_S = 30
_ROOM_BYTES = 1 << 30  # address space of a child beyond its parent's
_FORK_BYTES = 3 << 20  # pages that every child copies
_HEAD = struct.Struct(">I")


class CheckRequest(msgspec.Struct, array_like=True, frozen=True):
    """Try a grammar; without one, give up the check of this number."""

    number: int
    spec: StructuredOutputsParams | None = None


class CheckReply(msgspec.Struct, array_like=True, frozen=True):
    """`error` is None for a good grammar; `num_bytes` is the memory that it takes."""

    number: int
    error: str | None
    num_bytes: int = 0


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


def main() -> int:
    """Serve until stdin is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the API server decides what Ctrl-C means
    answers = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    _Worker(answers).run()
    return 0


class _Worker:
    def __init__(self, answers: int) -> None:
        self._answers = answers
        self._frames = FrameReader()
        self._selector = selectors.DefaultSelector()
        self._children: dict[int, tuple[int, int]] = {}  # pipe -> (number, pid)
        self._tokenizer: LLTokenizer | str | None = None  # or why there is none

    def run(self) -> None:
        self._selector.register(0, selectors.EVENT_READ)
        try:
            while True:
                for key, _ in self._selector.select():
                    if key.fd != 0:
                        self._reap(key.fd)
                    elif not self._receive():
                        return
        finally:
            for _, pid in self._children.values():
                os.kill(pid, signal.SIGKILL)

    def _receive(self) -> bool:
        data = os.read(0, 1 << 16)
        for payload in self._frames.feed(data):
            if self._tokenizer is None:
                self._load(msgspec.msgpack.decode(payload, type=GrammarModel))
                continue
            request = msgspec.msgpack.decode(payload, type=CheckRequest)
            if request.spec is None:
                self._give_up(request.number)
            else:
                self._start(request.number, request.spec)
        return bool(data)

    def _load(self, model: GrammarModel) -> None:
        try:
            self._tokenizer = load_tokenizer(model)
        except Exception as error:  # whatever is wrong with it, every check says so
            self._tokenizer = f"the model's tokenizer cannot be used for it: {error}"

    def _start(self, number: int, spec: StructuredOutputsParams) -> None:
        assert self._tokenizer is not None, "the model comes first"
        if isinstance(self._tokenizer, str):
            self._reply(CheckReply(number, self._tokenizer))
            return
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            _try_and_exit(self._tokenizer, number, spec, writer)
        os.close(writer)
        self._children[reader] = number, pid
        self._selector.register(reader, selectors.EVENT_READ)

    def _give_up(self, number: int) -> None:
        for wanted, pid in self._children.values():
            if wanted == number:
                os.kill(pid, signal.SIGKILL)

    def _reap(self, reader: int) -> None:
        number, pid = self._children.pop(reader)
        self._selector.unregister(reader)
        payload = os.read(reader, 1 << 16)
        os.close(reader)
        _, status = os.waitpid(pid, 0)
        if payload:
            self._reply(msgspec.msgpack.decode(payload, type=CheckReply))
        else:
            self._reply(CheckReply(number, _why_ended(status)))

    def _reply(self, reply: CheckReply) -> None:
        data = write_frame(reply)
        while data:
            data = data[os.write(self._answers, data) :]


def _try_and_exit(
    tokenizer: LLTokenizer, number: int, spec: StructuredOutputsParams, writer: int
) -> None:
    """All that the forked child does; it never returns into the parent's code."""
    try:
        # What llguidance writes when it panics is for its authors.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        _set_limits()
        process = psutil.Process()  # not the parent's, which has another number
        before = process.memory_info().rss
        try:
            error = grammar_error(tokenizer, spec)
        except MemoryError:
            error = _TOO_LARGE
        num_bytes = max(0, process.memory_info().rss - before - _FORK_BYTES)
        if error is None and num_bytes > LIMIT_BYTES:
            error = _TOO_LARGE
        reply = CheckReply(number, error and plain_reason(error), num_bytes)
        os.write(writer, msgspec.msgpack.encode(reply))
    finally:
        os._exit(0)


_TOO_LARGE = f"it takes more than {LIMIT_BYTES >> 20} MiB of memory once compiled; make it smaller"


def _set_limits() -> None:
    for number in (signal.SIGXCPU, signal.SIGALRM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_CPU_S, LIMIT_CPU_S + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(_LIMIT_WALL_S)
    if sys.platform == "linux":
        size = psutil.Process().memory_info().vms + _ROOM_BYTES
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (min(size, hard) if hard >= 0 else size, hard))


def _why_ended(status: int) -> str:
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number in (signal.SIGXCPU, signal.SIGALRM, signal.SIGKILL):
        return f"it takes more than {LIMIT_CPU_S} s to compile; make it smaller"
    if number == signal.SIGABRT:
        return f"it takes more than {_ROOM_BYTES >> 20} MiB of memory to compile; make it smaller"
    return "it cannot be compiled; make it smaller, or nest it less"


if __name__ == "__main__":
    raise SystemExit(main())
