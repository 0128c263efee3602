"""Asks one engine over and over what its scheduler does, while somebody looks at it.

Knows no widget. A server that has no /debug, or refuses the key, is asked rarely.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from textual.message import Message

from app.client.debug.documents import DebugSample
from app.client.errors import BadStatus, ClientError
from app.client.watch.watched import PacedSource
from tui.messages import DebugArrived, DebugFailed

INTERVAL_S = 1.0
_REFUSED_INTERVAL_S = 10.0


class DebugSampleSource(Protocol):
    """Where it comes from (app.client.debug.documents.DebugSource, or a script in tests)."""

    async def fetch(self) -> DebugSample:
        """The newest sample of /debug; ClientError when the server gives none."""

    async def cancel(self, request_id: str) -> None:
        """End one request, or ClientError."""

    async def aclose(self) -> None: ...


class DebugPoller:
    """`run` until cancelled; one question is pending at any time."""

    def __init__(
        self,
        source: DebugSampleSource,
        post: Callable[[Message], object],
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._source = source
        self._post = post
        self._interval_s = interval_s

    async def run(self) -> None:
        """Ask, post, wait; closes the connection at the end."""
        try:
            while True:
                await asyncio.sleep(await self._poll())
        finally:
            await self._source.aclose()

    async def _poll(self) -> float:
        try:
            sample = await self._source.fetch()
        except ClientError as error:
            self._post(DebugFailed(error))
            is_refusal = isinstance(error, BadStatus) and error.is_refusal
            return max(self._interval_s, _REFUSED_INTERVAL_S if is_refusal else 0.0)
        self._post(DebugArrived(sample))
        return 0.0 if isinstance(self._source, PacedSource) else self._interval_s
