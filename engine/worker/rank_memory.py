"""The memory that an engine's processes share: message rings and the ranks' last lines.

It has no name: a file in memory that is handed on as an open descriptor, so whatever way the
processes end, nothing of it is left. Who waits for a message sleeps in the read of a socket, whose
end tells that the other side is gone.
"""

from __future__ import annotations

import mmap
import os
import pickle
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_PAGE = 4096
_WORD = 8  # bytes of a counter
_LINE = 64  # counters of different processes lie on cache lines of their own
_HEAD = struct.Struct("<QQ")  # of a piece: its bytes, and whether more of the message follow
_FULL_WAIT_S = 0.0005


class PeerGoneError(Exception):
    """The process at the other end of a socket has ended."""


class RankLostError(Exception):
    """Another rank, which this one needs, has ended; EngineCore knows which."""


@dataclass(frozen=True, slots=True)
class RingShape:
    """`num_slots` pieces of a message can be under way. Untouched slots take no memory."""

    num_readers: int
    num_slots: int
    slot_bytes: int

    @property
    def num_bytes(self) -> int:
        head = _padded((self.num_readers + 1) * _LINE)
        return head + self.num_slots * _padded(_HEAD.size + self.slot_bytes)


class MessageRing:
    """Messages of one writer for `num_readers` readers, each of whom gets all of them.

    A message longer than a slot goes in several pieces. The writer's counter is written last and
    the socket call between the two sides orders the memory.
    """

    def __init__(self, memory: memoryview, shape: RingShape) -> None:
        head = _padded((shape.num_readers + 1) * _LINE)
        counters: NDArray[np.uint64] = np.frombuffer(memory[:head], dtype=np.uint64)
        self._counters = counters[:: _LINE // _WORD]  # pieces written, then read by each reader
        self._slots = memory[head:]
        self._shape = shape
        self._stride = _padded(_HEAD.size + shape.slot_bytes)

    def pieces(self, message: memoryview, on_wait: Callable[[], None]) -> Iterator[None]:
        """Write the message piece by piece; each time, the readers are to be woken.

        `on_wait` is called again and again while there is no room, and may raise.
        """
        size = self._shape.slot_bytes
        starts = range(0, max(len(message), 1), size)
        for start in starts:
            piece = message[start : start + size]
            written = int(self._counters[0])
            self._wait_for_room(written, on_wait)
            slot = written % self._shape.num_slots * self._stride
            _HEAD.pack_into(self._slots, slot, len(piece), start + size < len(message))
            first = slot + _HEAD.size
            self._slots[first : first + len(piece)] = piece
            self._counters[0] = written + 1
            yield

    def _wait_for_room(self, written: int, on_wait: Callable[[], None]) -> None:
        readers = self._counters[1 : self._shape.num_readers + 1]
        while written - int(readers.min()) >= self._shape.num_slots:
            time.sleep(_FULL_WAIT_S)
            on_wait()

    def take(self, reader: int) -> tuple[bytes, bool]:
        """The next piece, once it was announced, and whether more of the message follow."""
        count = int(self._counters[reader + 1])
        slot = count % self._shape.num_slots * self._stride
        size, has_more = _HEAD.unpack_from(self._slots, slot)
        first = slot + _HEAD.size
        piece = bytes(self._slots[first : first + size])
        self._counters[reader + 1] = count + 1
        return piece, bool(has_more)


class Outbox:
    """The writer's end: a ring, and a socket to each of its readers."""

    def __init__(
        self,
        ring: MessageRing,
        sockets: Sequence[socket.socket],
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        self._ring = ring
        self._sockets = sockets
        self._on_wait = on_wait

    def send(self, message: object) -> None:
        """PeerGoneError when a reader has ended."""
        self.send_bytes(memoryview(pickle.dumps(message, protocol=5)))

    def send_bytes(self, message: memoryview) -> None:
        try:
            for _ in self._ring.pieces(message, self._on_wait):
                for reader in self._sockets:
                    reader.send(b"\0")
        except OSError as error:
            raise PeerGoneError(str(error)) from error


class Inbox:
    """The end of a ring at which one reader takes the messages."""

    def __init__(self, ring: MessageRing, reader: int, source: socket.socket) -> None:
        self._ring = ring
        self._reader = reader
        self._source = source

    def receive(self) -> object:
        """The next message; sleeps until there is one. PeerGoneError when the writer has ended."""
        return pickle.loads(self.receive_bytes())  # from a process of ours, never from outside

    def receive_bytes(self) -> bytes:
        pieces, has_more = [], True
        while has_more:
            if not self._announced():
                raise PeerGoneError
            piece, has_more = self._ring.take(self._reader)
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _announced(self) -> bool:
        try:
            return bool(self._source.recv(1))
        except ConnectionError:
            return False


def inherited_socket(descriptor: int) -> socket.socket:
    """One that this process was started with; the programs that it starts do not get it."""
    os.set_inheritable(descriptor, False)
    return socket.socket(fileno=descriptor)


def receive_exactly(source: socket.socket, size: int) -> bytes:
    """So many bytes; PeerGoneError when the other side closes before."""
    found = b""
    while len(found) < size:
        piece = source.recv(size - len(found))
        if not piece:
            raise PeerGoneError
        found += piece
    return found


class SharedMemory:
    """A nameless file in memory, mapped; every process of the engine maps the same."""

    def __init__(self, descriptor: int, num_bytes: int) -> None:
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, num_bytes)
        self.view = memoryview(self._map)

    @classmethod
    def create(cls, num_bytes: int) -> SharedMemory:
        """Pages come from the system when they are first written."""
        descriptor = os.memfd_create("stoker-ranks")
        os.truncate(descriptor, num_bytes)
        return cls(descriptor, num_bytes)

    def close(self) -> None:
        """Let this process's part go; the memory goes with the last process that has it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def address(self) -> int:
        """Where it lies in this process, for C++."""
        return int(np.frombuffer(self.view, dtype=np.uint8).ctypes.data)


class Layout:
    """Hands out pieces of the memory: the same calls give every process the same places."""

    def __init__(self) -> None:
        self.num_bytes = 0

    def take(self, num_bytes: int) -> slice:
        start = self.num_bytes
        self.num_bytes += _padded(num_bytes)
        return slice(start, start + num_bytes)


class LastLines:
    """The last lines of a rank's log, where others find them when it cannot speak any more."""

    NUM_BYTES = _PAGE
    _SIZE = struct.Struct("<I")

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory

    def write(self, lines: Sequence[str]) -> None:
        """Replaces what was there; the beginning goes when it is too much."""
        text = "\n".join(lines).encode()[-(self.NUM_BYTES - self._SIZE.size) :]
        self._memory[self._SIZE.size : self._SIZE.size + len(text)] = text
        self._SIZE.pack_into(self._memory, 0, len(text))

    def read(self) -> list[str]:
        (size,) = self._SIZE.unpack_from(self._memory)
        text = bytes(self._memory[self._SIZE.size : self._SIZE.size + size])
        return text.decode(errors="replace").splitlines()


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // _PAGE) * _PAGE
