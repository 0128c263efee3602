"""What both ends of the engine's sockets do alike."""

from __future__ import annotations

import asyncio
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
