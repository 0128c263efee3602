"""A server's answers on their way to a screen, written down as they pass."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from app.client.debug.documents import DebugSource
from app.client.errors import ClientError
from app.client.metrics.sample import MetricsSample
from app.client.server import MetricsSource
from app.client.watch.recording import RecordingWriter

_REFUSED_PAUSE = 10  # scrapes between two questions to a server that does not tell


class RecordedSource:
    """Scrapes like `source`, and asks for the engine's /debug documents on the side."""

    def __init__(
        self, source: MetricsSource, debug: DebugSource, writer: RecordingWriter, server: int = 0
    ) -> None:
        self._source = source
        self._debug = debug
        self._writer = writer
        self._server = server
        self._pause = 0

    async def scrape(self) -> MetricsSample:
        """One sample; what came is in the file, errors too."""
        documents = asyncio.create_task(self._documents())
        try:
            text, time_s = await self._source.fetch()
            sample = await self._source.read(text, time_s)
        except ClientError as error:
            documents.cancel()
            self._writer.failed(self._server, time.monotonic(), error)
            raise
        self._writer.scraped(self._server, time_s, text)
        found = await documents
        if found is not None:
            self._writer.debugged(self._server, time_s, found)
        return sample

    async def aclose(self) -> None:
        """Close both connections; the file stays open for the other servers."""
        await self._source.aclose()
        await self._debug.aclose()

    async def _documents(self) -> dict[str, Any] | None:
        if self._pause > 0:
            self._pause -= 1
            return None
        for ask in (self._debug.fetch_documents, self._slots):
            try:
                return await ask()
            except ClientError:
                continue
        self._pause = _REFUSED_PAUSE
        return None

    async def _slots(self) -> dict[str, Any]:
        """llama-server's answer to the same question."""
        return {"slots": await self._debug.slots_document()}
