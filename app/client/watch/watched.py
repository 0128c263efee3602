"""One server that is watched: how it is called and how its connections are opened.

A server may be asked itself, be played back from a recording, or be known through Prometheus; who
watches sees no difference.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable

from app.client.debug.documents import DebugSource
from app.client.errors import ClientError
from app.client.metrics.sample import MetricsSample
from app.client.server import MetricsSource
from app.client.transport import normalise_base_url
from app.client.watch.recorded_source import RecordedSource
from app.client.watch.recording import RecordingWriter
from app.client.watch.replay import Replay, ReplayDebugSource

_SHORTEST_TIMEOUT_S = 2.0
_SCRAPES_AT_ONCE = 16


class SampleSource(Protocol):
    """Where samples come from (app.client.server.MetricsSource, or a script in tests)."""

    async def scrape(self) -> MetricsSample:
        """The newest sample; ClientError when the server gives none."""

    async def aclose(self) -> None: ...


@runtime_checkable
class PacedSource(Protocol):
    """A source that waits by itself until there is something new, like a recording."""

    is_paced: bool


def _no_debug() -> None:
    return None


def _no_state() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class WatchedServer:
    """Whoever opens a source closes it. `state` is what its supervisor says, "" without one;
    `cause` why it is away, as far as the supervisor knows.
    """

    name: str
    url: str
    open_source: Callable[[], SampleSource]
    open_debug: Callable[[], DebugSource | ReplayDebugSource | None] = _no_debug
    past: Callable[[], Awaitable[list[MetricsSample]]] | None = None
    state: Callable[[], str] = _no_state
    cause: Callable[[], str] = _no_state
    log_path: Path | None = None


@dataclass(frozen=True, slots=True)
class Scraped:
    """What one server answered: a sample, or the error instead."""

    server: WatchedServer
    sample: MetricsSample | None
    error: ClientError | None = None

    @property
    def reason(self) -> str:
        """Why there is no sample, as whoever knows best says it; "" with one."""
        return "" if self.error is None else self.server.cause() or str(self.error)


def watch_url(
    url: str, *, name: str = "", api_key: str | None = None, interval_s: float = 1.0
) -> WatchedServer:
    """A server that is asked itself, over HTTP."""
    base_url = normalise_base_url(url)
    timeout_s = max(_SHORTEST_TIMEOUT_S, 0.9 * interval_s)
    return WatchedServer(
        name or base_url.partition("://")[2],
        base_url,
        open_source=partial(MetricsSource, base_url, api_key=api_key, timeout_s=timeout_s),
        open_debug=partial(DebugSource, base_url, api_key=api_key),
    )


def watch_recorded(
    server: WatchedServer, writer: RecordingWriter, number: int, api_key: str | None
) -> WatchedServer:
    """A server that is asked itself; what it answers goes into the recording too."""

    def open_source() -> RecordedSource:
        source = MetricsSource(server.url, api_key=api_key, timeout_s=_SHORTEST_TIMEOUT_S)
        debug = DebugSource(server.url, api_key=api_key, timeout_s=_SHORTEST_TIMEOUT_S)
        return RecordedSource(source, debug, writer, number)

    return replace(server, open_source=open_source)


def watch_replay(replay: Replay, origin: str) -> list[WatchedServer]:
    """The servers of a recording; `origin` says in the picture where the numbers come from."""
    return [
        WatchedServer(
            name,
            f"{name}, {origin}",
            open_source=partial(replay.source, number),
            open_debug=partial(replay.debug_source, number),
        )
        for number, name in enumerate(replay.recording.servers)
    ]


async def scrape_all(servers: Sequence[WatchedServer]) -> list[Scraped]:
    """One sample of each, in their order; a server that is away takes nothing from the others."""
    places = asyncio.Semaphore(_SCRAPES_AT_ONCE)

    async def one(server: WatchedServer) -> Scraped:
        async with places, contextlib.aclosing(server.open_source()) as source:
            try:
                return Scraped(server, await source.scrape())
            except ClientError as error:
                return Scraped(server, None, error)

    return await asyncio.gather(*(one(server) for server in servers))


async def record_steps(
    servers: Sequence[WatchedServer],
    writer: RecordingWriter,
    interval_s: float,
    steps: int | None,
) -> None:
    """Scrape all every `interval_s`, so many times, or until the file is full."""
    sources = [server.open_source() for server in servers]
    loop, number = asyncio.get_running_loop(), 0
    due_s = loop.time()
    try:
        while (steps is None or number < steps) and not writer.is_full:
            await asyncio.gather(*(s.scrape() for s in sources), return_exceptions=True)
            number, due_s = number + 1, max(loop.time(), due_s + interval_s)
            if number != steps:
                await asyncio.sleep(due_s - loop.time())
    finally:
        for source in sources:
            await source.aclose()
