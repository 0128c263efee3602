"""What moves while a server starts: bars of any unit, and how long ago something moved last."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable

from logparse import Event, FactFound, PhaseFinished, PhaseStarted, ProgressMade, ServerReady

# A download counts bytes (`45%|####   | 1.2G/2.6G`), so that only its percentage can be used.
_BAR_IN_UNITS = re.compile(r"(?P<title>[^|%\r]{0,80}?)[: ]*\b(?P<percent>\d{1,3})%\|[^|]{0,200}\|")
_STEPS = (PhaseStarted, PhaseFinished, FactFound, ServerReady)


class ProgressClock:
    """Feed it what each line told. Lines that tell nothing are no progress: a hung start prints."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._moved_at = clock()
        self._bar: tuple[str, int, int] | None = None

    @property
    def age_s(self) -> float:
        """Seconds since something moved."""
        return self._clock() - self._moved_at

    def note(self, events: Iterable[Event]) -> None:
        """Take the events of one line."""
        for event in events:
            if isinstance(event, ProgressMade):
                bar = (event.text, event.done, event.total)
                if bar == self._bar:
                    continue
                self._bar = bar
            elif not isinstance(event, _STEPS):
                continue
            self._moved_at = self._clock()


def bar_in_units(line: str, line_number: int) -> ProgressMade | None:
    """The last state of a bar whose numbers carry units, in percent."""
    if "%|" not in line:
        return None
    found = list(_BAR_IN_UNITS.finditer(line))
    if not found:
        return None
    title = found[-1]["title"].strip()
    return ProgressMade(line_number, title, int(found[-1]["percent"]), 100)
