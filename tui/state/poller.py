"""Scrapes one server over and over and posts what came. One scrape is pending at any time.

Knows no widget: the source and the place to post to come in through the constructor.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from textual.message import Message

from app.client.errors import ClientError
from app.client.watch.watched import PacedSource
from app.client.watch.watched import SampleSource as SampleSource
from tui.messages import Disconnected, SampleArrived

LONGEST_BACKOFF_S = 1.0
"""A server that is back is seen at once; asking one that is away costs next to nothing."""


class MetricsPoller:
    """`run` until cancelled; `interval_s` may change meanwhile, `poll_now` cuts a wait short."""

    def __init__(
        self, source: SampleSource, post: Callable[[Message], object], interval_s: float
    ) -> None:
        self.interval_s = interval_s
        self._source = source
        self._post = post
        self._wake = asyncio.Event()
        self._num_failures = 0

    def poll_now(self) -> None:
        """Scrape at once instead of at the end of the interval."""
        self._wake.set()

    async def run(self) -> None:
        """Scrape, post, wait; closes the source at the end."""
        try:
            while True:
                await self._wait(await self._poll())
        finally:
            await self._source.aclose()

    async def _poll(self) -> float:
        """One scrape; returns the seconds to wait before the next."""
        try:
            sample = await self._source.scrape()
        except ClientError as error:
            self._num_failures += 1
            delay_s = backoff_s(self.interval_s, self._num_failures)
            self._post(Disconnected(error, self._num_failures, delay_s))
            return delay_s
        self._num_failures = 0
        self._post(SampleArrived(sample))
        return 0.0 if isinstance(self._source, PacedSource) else self.interval_s

    async def _wait(self, delay_s: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._wake.wait(), delay_s)
        self._wake.clear()


def backoff_s(interval_s: float, num_failures: int) -> float:
    """Double the wait with each failure, up to LONGEST_BACKOFF_S."""
    return min(LONGEST_BACKOFF_S, interval_s * 2.0 ** min(num_failures - 1, 16))
