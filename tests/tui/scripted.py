"""A dashboard fed by a script: the test hands over samples and errors one by one."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable

from textual.app import App
from textual.pilot import Pilot

from app.client.errors import ClientError
from app.client.metrics import MetricsSample

URL = "http://127.0.0.1:8000"


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


async def until(pilot: Pilot[str], condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    """Let the app work until `condition` holds."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"waited in vain; on screen:\n{screen_text(pilot.app)}"
        await pilot.pause(0.01)


def screen_text(app: object) -> str:
    """What is on the screen, one line per row, runs of spaces as one."""
    assert isinstance(app, App)
    width, height = app.size
    rows = app.screen._compositor.render_strips()
    return "\n".join(re.sub(" +", " ", strip.text[:width]).rstrip() for strip in rows[:height])
