"""What both ends of the engine's sockets do alike."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import zmq
import zmq.asyncio


def open_socket(context: zmq.asyncio.Context, kind: int, most: int = 0) -> zmq.asyncio.Socket:
    """`most` is the number of messages that it keeps while nobody reads them; 0 is all."""
    socket = context.socket(kind)
    socket.setsockopt(zmq.SNDHWM, most)
    socket.setsockopt(zmq.RCVHWM, 0)
    return socket


def bound(context: zmq.asyncio.Context, kind: int, address: str) -> zmq.asyncio.Socket:
    """One that keeps all messages, and listens."""
    socket = open_socket(context, kind)
    socket.bind(address)
    return socket


async def is_sent(
    socket: zmq.asyncio.Socket, parts: Sequence[bytes], end: asyncio.Future[Any]
) -> bool:
    """Whether the message is taken before `end` is done; then nobody will take it any more."""
    sending = asyncio.ensure_future(socket.send_multipart(parts))
    try:
        if not sending.done():  # nobody is connected: not yet, or its end is known to it alone
            waited: set[asyncio.Future[Any]] = {sending, end}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    finally:
        sending.cancel()  # no more than that where it is done
    if sending.cancelled():
        return False
    sending.result()
    return True


class MessageReader:
    """The messages of a socket that one task waits for, for much less than zmq.asyncio's futures
    cost at every step. To be ended before the socket is closed.
    """

    def __init__(self, socket: zmq.asyncio.Socket) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Socket.shadow(socket.underlying)
        self._messages: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._has_ended = False
        self._loop = asyncio.get_running_loop()
        self._descriptor = self._socket.FD
        self._loop.add_reader(self._descriptor, self._take)
        self._take()

    async def next(self) -> bytes | None:
        """The next message; None once all that came before `end` are read."""
        while not self._messages:
            if self._has_ended:
                return None
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._messages.popleft()

    def end(self) -> None:
        """Nobody sends any more; what has come is still read. Idempotent."""
        if self._has_ended:
            return
        self._take()
        self._has_ended = True
        self._loop.remove_reader(self._descriptor)
        self._wake()

    def _take(self) -> None:
        """All that lies in the socket: its descriptor tells of news once, not of what is left."""
        if self._has_ended:
            return
        while int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN:
            self._messages.append(self._socket.recv(zmq.NOBLOCK))
        if self._messages:
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
