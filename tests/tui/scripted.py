"""A dashboard fed by a script: the test hands over samples and errors one by one."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable

from textual._wait import SLEEP_GRANULARITY
from textual.app import App
from textual.pilot import Pilot

from app.client.errors import ClientError
from app.client.metrics.sample import MetricsSample
from tui.app import FleetApp
from tui.state.history import MetricHistory

URL = "http://127.0.0.1:8000"
_MOST_TURNS = 1000  # an app that polls without a pause is never idle


class ScriptedSource:
    """Each scrape takes the next entry; without one it waits, as a slow server would."""

    def __init__(self) -> None:
        self._script: asyncio.Queue[MetricsSample | ClientError] = asyncio.Queue()
        self.num_scrapes = 0
        self.is_closed = False

    def then(self, *entries: MetricsSample | ClientError) -> None:
        for entry in entries:
            self._script.put_nowait(entry)

    async def scrape(self) -> MetricsSample:
        entry = await self._script.get()
        self.num_scrapes += 1
        if isinstance(entry, ClientError):
            raise entry
        return entry

    async def aclose(self) -> None:
        self.is_closed = True


def history_of(app: FleetApp, number: int) -> MetricHistory:
    """What the fleet's screen has collected of one server."""
    return app.fleet._watches[number].history


async def until(pilot: Pilot[str], condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Let the app work until `condition` holds."""
    await until_right(pilot, lambda: "" if condition() else "waited in vain", limit_s)


async def until_right(
    pilot: Pilot[str], complaint: Callable[[], str], limit_s: float = 60.0
) -> None:
    """Let the app work until there is nothing to complain of."""
    end = time.monotonic() + limit_s
    while said := complaint():
        assert time.monotonic() < end, f"{said}; on screen:\n{screen_text(pilot.app)}"
        await pilot.pause(0.01)


async def settled(pilot: Pilot[str]) -> None:
    """Let the app work until two looks in a row show the same; no thread may be at work for it."""
    before = None
    while before != (before := screen_text(pilot.app)):
        await pilot.pause()


async def loop_is_idle(min_sleep: float = 0.0, max_sleep: float = 0.0) -> None:
    """Wait until nothing is left to run in the event loop, in place of textual's `wait_for_idle`.

    That one takes a process that uses no CPU time for one that has nothing to do, which on a busy
    machine is also one that waits for its turn.
    """
    await asyncio.sleep(SLEEP_GRANULARITY)
    ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
    for _ in range(_MOST_TURNS):
        await asyncio.sleep(0)
        if not ready:
            return


def screen_text(app: object) -> str:
    """What is on the screen, one line per row, runs of spaces as one."""
    assert isinstance(app, App)
    width, height = app.size
    rows = app.screen._compositor.render_strips()
    return "\n".join(re.sub(" +", " ", strip.text[:width]).rstrip() for strip in rows[:height])
