"""Plays a recording back: sources that answer as the recorded servers did, at any speed.

Time is the recording's own, so the same file gives the same samples, ages and pictures each time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from app.client.debug.documents import DebugSample, read_debug
from app.client.errors import BadAnswer, BadStatus, ClientError, Unreachable
from app.client.metrics.sample import MetricsSample
from app.client.metrics.slots import Slot, read_slots
from app.client.server import sample_of
from app.client.watch.recording import Entry, Recording

DEMO = Path(__file__).with_name("demo.jsonl.gz")
"""The built-in recording that `stoker top --mock` plays."""

_TICK_S = 0.02


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """What one scrape of the recording gave: a sample, or why there is none."""

    time_s: float
    server: int
    sample: MetricsSample | None
    error: str = ""
    debug: DebugSample | None = None


def steps(recording: Recording) -> Iterator[ReplayStep]:
    """Every scrape in order, with the /debug answer that belongs to it."""
    entries = recording.entries
    for number, entry in enumerate(entries):
        if entry.debug is not None:
            continue
        following = entries[number + 1] if number + 1 < len(entries) else None
        debug = _debug_of(following) if following and following.server == entry.server else None
        try:
            yield ReplayStep(entry.time_s, entry.server, _sample(entry, 0.0), debug=debug)
        except ClientError as error:
            yield ReplayStep(entry.time_s, entry.server, None, error=str(error))


class Replay:
    """One position in the recording for all of its servers; it starts with the first question."""

    def __init__(
        self,
        recording: Recording,
        *,
        speed: float = 1.0,
        is_looping: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.recording = recording
        self.is_over = False
        self._speed = speed
        self._is_looping = is_looping
        self._clock = clock
        self._started_s: float | None = None
        self._shown_s = 0.0
        # From the first answer to the last, and one interval more.
        self._length_s = recording.entries[-1].time_s + recording.interval_s

    def now_s(self) -> float:
        """The recorded time of the newest answer: what the age of a sample is taken against."""
        return self._shown_s

    def position_text(self) -> str:
        """What of the recording is shown: `0:42 of 1:30`, with the date where the file tells it."""
        shown_s = self._shown_s % self._length_s if self._is_looping else self._shown_s
        place = f"{_clock_text(shown_s)} of {_clock_text(self._length_s)}"
        started = self.recording.started_at_s
        if started is None:
            return place
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(started + shown_s))
        return f"{place} · {moment}"

    def source(self, server: int = 0) -> ReplaySource:
        """Answers of one server's GET /metrics, from the present position on."""
        return ReplaySource(self, self._of(server, is_debug=False))

    def debug_source(self, server: int = 0) -> ReplayDebugSource | None:
        """Answers of one server's /debug; None if the recording has none."""
        entries = self._of(server, is_debug=True)
        return ReplayDebugSource(self, entries) if entries else None

    def _of(self, server: int, *, is_debug: bool) -> list[Entry]:
        entries = self.recording.entries
        return [e for e in entries if e.server == server and (e.debug is not None) is is_debug]

    def due(self, entries: list[Entry], number: int) -> float | None:
        """When the entry of this running number is to be shown; None after the end."""
        rounds, index = divmod(number, len(entries)) if entries else (1, 0)
        if rounds and not (self._is_looping and entries):
            return None
        return rounds * self._length_s + entries[index].time_s

    def next_number(self, entries: list[Entry]) -> int:
        """The running number of the first entry that is not before the shown position."""
        number = 0
        while (due := self.due(entries, number)) is not None and due < self._shown_s:
            number += 1
        return number

    async def reach(self, due_s: float) -> None:
        """Wait until the recording has come to `due_s`."""
        if self._started_s is None:
            self._started_s = self._clock()
        while (self._clock() - self._started_s) * self._speed < due_s:
            left_s = due_s / self._speed - (self._clock() - self._started_s)
            await asyncio.sleep(max(0.0, left_s))
        self._shown_s = max(self._shown_s, due_s)


def _clock_text(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class ReplaySource:
    """A sample source; it waits by itself until the next answer is due."""

    is_paced = True

    def __init__(self, replay: Replay, entries: list[Entry]) -> None:
        self._replay = replay
        self._entries = entries
        self._number = replay.next_number(entries)

    async def scrape(self) -> MetricsSample:
        """The next recorded answer, or the recorded error; nothing more after the end."""
        due_s = self._replay.due(self._entries, self._number)
        if due_s is None:
            self._replay.is_over = True
            await asyncio.Event().wait()
        assert due_s is not None
        entry = self._entries[self._number % len(self._entries)]
        await self._replay.reach(due_s)
        self._number += 1
        return _sample(entry, due_s - entry.time_s)

    async def aclose(self) -> None:
        """Nothing is open: the recording was read whole."""


class ReplayDebugSource:
    """A /debug source; it answers anew when the recording has come to another answer."""

    is_paced = True

    def __init__(self, replay: Replay, entries: list[Entry]) -> None:
        self._replay = replay
        self._entries = entries
        self._number = -1

    async def fetch(self) -> DebugSample:
        """The answer that belongs to the samples on screen."""
        while (number := self._newest()) == self._number:
            await asyncio.sleep(_TICK_S)
        self._number = number
        if "slots" in (self._entries[number % len(self._entries)].debug or {}):
            raise BadStatus("the recording", 404, "this server has no scheduler to look into")
        found = _debug_of(self._entries[number % len(self._entries)])
        if found is None:
            raise BadAnswer("the recording holds a /debug answer that cannot be read")
        return found

    async def slots(self) -> tuple[Slot, ...]:
        """llama-server's slots that belong to the samples on screen."""
        debug = self._entries[max(0, self._newest()) % len(self._entries)].debug or {}
        return read_slots(debug.get("slots", ()))

    def _newest(self) -> int:
        number = self._number
        while True:
            due_s = self._replay.due(self._entries, number + 1)
            if due_s is None or due_s > self._replay.now_s():
                return number
            number += 1

    async def cancel(self, request_id: str) -> None:
        """Refused: what is recorded has happened."""
        raise BadStatus("the recording", 405, f"{request_id} has been recorded; it is not running")

    async def aclose(self) -> None:
        """Nothing is open: the recording was read whole."""


def _sample(entry: Entry, offset_s: float) -> MetricsSample:
    if entry.lines is None:
        raise Unreachable(entry.error or "no answer was recorded")
    return sample_of(entry.metrics, entry.time_s + offset_s, "the recording")


def _debug_of(entry: Entry) -> DebugSample | None:
    if entry.debug is None:
        return None
    try:
        return read_debug(entry.debug, entry.time_s)
    except ClientError:
        return None
