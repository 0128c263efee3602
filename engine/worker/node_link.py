"""NodeLink: a TCP connection between two nodes of an engine that both have the nodes' secret.

TCP and not ZMQ, since a closed socket must be seen at once, in the same poll as the local ranks'
sockets. Each side proves that it has the secret before a byte of the other is read as an object,
and every frame carries a code (HMAC-SHA256) under a key of this connection and its number in it:
nobody on the way can add, change, repeat or drop one. What is sent can be read there, as can what
gloo and NCCL send.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import pickle
import socket
import struct
import time
from collections.abc import Iterator

from engine.worker.rank_memory import PeerGoneError, receive_exactly

_NONCE, _CODE = 32, 32  # bytes
_HEAD = struct.Struct("<Q")
_NUMBER = struct.Struct("<Q")
_START = _HEAD.size + _CODE
_MOST_BYTES = 1 << 32
_SEND_S = 4.0
"""Within so many seconds a frame is taken by the other side's kernel, or that side is gone."""
_SILENT_S = 4
_PROOF_S = 5.0


class StrangerError(Exception):
    """The other side does not have the secret, or does not speak as a node does."""


class NodeLink:
    """Both ends use it from one thread each. Objects travel pickled, so nobody else may write."""

    def __init__(self, connection: socket.socket, send_key: bytes, receive_key: bytes) -> None:
        self._socket = connection
        self._keys = send_key, receive_key
        # Asked now: a connection that has broken off has no addresses any more.
        self.local_host = str(connection.getsockname()[0])
        """The address of this machine that leads to the other side."""
        self.peer_host = str(connection.getpeername()[0])
        self._num_sent = self._num_received = 0
        self._buffer = bytearray()

    @classmethod
    def accepted(cls, connection: socket.socket, secret: bytes) -> NodeLink:
        """The end of node 0, whose question comes first."""
        with _proving(connection):
            ours = os.urandom(_NONCE)
            connection.sendall(ours)
            answer = receive_exactly(connection, _NONCE + _CODE)
            both = ours + answer[:_NONCE]
            _require(answer[_NONCE:], _code(secret, b"other node", both))
            connection.sendall(_code(secret, b"node 0", both))
            from_node, to_node = _keys(secret, both)
            return cls(connection, to_node, from_node)

    @classmethod
    def connected(cls, connection: socket.socket, secret: bytes) -> NodeLink:
        """The end of another node."""
        with _proving(connection):
            both = receive_exactly(connection, _NONCE) + (ours := os.urandom(_NONCE))
            connection.sendall(ours + _code(secret, b"other node", both))
            _require(receive_exactly(connection, _CODE), _code(secret, b"node 0", both))
            from_node, to_node = _keys(secret, both)
            return cls(connection, from_node, to_node)

    def fileno(self) -> int:
        """Readable when there is something to `receive`."""
        return self._socket.fileno()

    def send(self, message: object) -> None:
        """PeerGoneError when the other side has ended, or takes nothing any more."""
        payload = pickle.dumps(message, protocol=5)
        code = _code(self._keys[0], _NUMBER.pack(self._num_sent), payload)
        self._num_sent += 1
        try:
            self._socket.sendall(_HEAD.pack(len(payload)) + code)
            self._socket.sendall(payload)
        except OSError as error:
            raise PeerGoneError(str(error)) from error

    def receive(self) -> Iterator[object]:
        """What has come, without a wait; PeerGoneError, behind it, when the other side has ended.

        To be called when it is readable: each call reads once.
        """
        try:
            piece = self._socket.recv(1 << 20)
        except OSError as error:
            raise PeerGoneError(str(error)) from error
        self._buffer += piece
        yield from self._frames()
        if not piece:
            raise PeerGoneError

    def _frames(self) -> Iterator[object]:
        while len(self._buffer) >= _START:
            size = self._frame_bytes()
            if len(self._buffer) < size:
                return
            frame = bytes(self._buffer[:size])
            del self._buffer[:size]
            yield self._opened(frame)

    def _frame_bytes(self) -> int:
        """Of the frame whose head is there."""
        (size,) = _HEAD.unpack_from(self._buffer)
        if size > _MOST_BYTES:
            raise PeerGoneError("a frame has been changed on its way")
        return _START + int(size)

    def _opened(self, frame: bytes) -> object:
        code, payload = frame[_HEAD.size : _START], frame[_START:]
        wanted = _code(self._keys[1], _NUMBER.pack(self._num_received), payload)
        if not hmac.compare_digest(code, wanted):
            raise PeerGoneError("a frame has been changed on its way")
        self._num_received += 1
        return pickle.loads(payload)  # of one who has the secret

    def receive_one(self, timeout_s: float) -> object:
        """The next message, and nothing behind it; PeerGoneError when none comes in time."""
        deadline = time.monotonic() + timeout_s
        try:
            self._read_up_to(_START, deadline)
            self._read_up_to(size := self._frame_bytes(), deadline)
        except OSError as error:
            raise PeerGoneError(str(error)) from error
        finally:
            self._socket.settimeout(_SEND_S)
        frame = bytes(self._buffer[:size])
        self._buffer.clear()
        return self._opened(frame)

    def _read_up_to(self, size: int, deadline: float) -> None:
        while len(self._buffer) < size:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            if not (piece := self._socket.recv(size - len(self._buffer))):
                raise PeerGoneError
            self._buffer += piece

    def finish(self, timeout_s: float) -> None:
        """Close it once the other side has read all and closed its end, or the time is over.

        Who closes with something unread would have the kernel throw away what was sent last.
        """
        deadline = time.monotonic() + timeout_s
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            while (left := deadline - time.monotonic()) > 0:
                self._socket.settimeout(left)
                if not self._socket.recv(1 << 20):
                    break
        self.close()

    def close(self) -> None:
        self._socket.close()


def keep_watch(connection: socket.socket) -> None:
    """A machine that is cut off closes no connection: the kernel asks it, and gives up."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _SILENT_S - 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_S * 1000)
    connection.settimeout(_SEND_S)


@contextlib.contextmanager
def _proving(connection: socket.socket) -> Iterator[None]:
    """StrangerError for all that goes wrong while both sides prove themselves."""
    connection.settimeout(_PROOF_S)
    try:
        yield
        keep_watch(connection)
    except OSError as error:
        raise StrangerError(str(error)) from error
    except PeerGoneError as error:
        raise StrangerError("it has closed the connection") from error


def _require(found: bytes, wanted: bytes) -> None:
    if not hmac.compare_digest(found, wanted):
        raise StrangerError("it has another secret")


def _keys(secret: bytes, both: bytes) -> tuple[bytes, bytes]:
    """Of this connection: for what goes to node 0, and for what comes from it."""
    return _code(secret, b"to node 0", both), _code(secret, b"from node 0", both)


def _code(key: bytes, label: bytes, text: bytes) -> bytes:
    return hmac.digest(key, label + b"\0" + text, "sha256")
