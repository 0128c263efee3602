"""What is done for a client ends with its connection."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from engine.server.http.connections import Connection, connection_of

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed its connection before the answer."""


async def unless_client_goes(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Run `work`, cancelled as soon as the client closes its connection; ClientGone then."""
    connection = connection_of(request.scope)
    if connection is not None:
        return await _bound_to(connection, work)
    return await _until_disconnect(request.receive, work)


async def _bound_to(connection: Connection, work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.create_task(work)
    connection.bind(task)
    try:
        return await task
    except asyncio.CancelledError:
        if connection.is_lost:
            raise ClientGone from None
        raise
    finally:
        connection.unbind(task)
        # The traceback of its error leads here: in a circle it would hold what the client sent.
        del task


async def _until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Under another kind of server, by the messages that it gives."""
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.wait({task, watcher})
        del task  # as above


async def _wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has gone away (or has the whole answer)."""
    while (await receive())["type"] != "http.disconnect":
        pass
