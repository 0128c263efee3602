from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from engine.core.sockets import MessageReader, bound


@pytest.fixture
async def ends(tmp_path: Path) -> AsyncGenerator[tuple[zmq.Socket[bytes], MessageReader], None]:
    """A socket that sends, and the reader of what it sends."""
    context, address = zmq.asyncio.Context(), f"ipc://{tmp_path}/socket"
    receiver, sender = bound(context, zmq.PULL, address), zmq.Context().socket(zmq.PUSH)
    reader = MessageReader(receiver)
    sender.connect(address)
    yield sender, reader
    reader.end()
    sender.context.destroy(linger=0)
    context.destroy(linger=0)


async def test_messages_come_in_order_alone_and_in_bursts(
    ends: tuple[zmq.Socket[bytes], MessageReader],
) -> None:
    sender, reader = ends
    first = asyncio.create_task(reader.next())
    await asyncio.sleep(0)
    sender.send(b"first")
    assert await first == b"first"
    for burst in range(3):
        for number in range(100):
            sender.send(b"%d" % number)
        for number in range(100):
            assert await reader.next() == b"%d" % number, burst


async def test_what_came_before_the_end_is_read(
    ends: tuple[zmq.Socket[bytes], MessageReader],
) -> None:
    sender, reader = ends
    for number in range(3):
        sender.send(b"%d" % number)
    assert await reader.next() == b"0"
    waiting = asyncio.create_task(reader.next())
    assert await waiting == b"1"
    assert await reader.next() == b"2"
    waiting = asyncio.create_task(reader.next())
    await asyncio.sleep(0)
    reader.end()
    reader.end()
    assert await waiting is None
    assert await reader.next() is None


async def test_a_wait_that_is_cancelled_loses_nothing(
    ends: tuple[zmq.Socket[bytes], MessageReader],
) -> None:
    sender, reader = ends
    waiting = asyncio.create_task(reader.next())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    sender.send(b"later")
    assert await reader.next() == b"later"
