"""StandstillWatch: finds processes that owe an answer and do nothing for it. Linux.

Looks are counted, not seconds, so that a stop of all processes is nobody's standstill.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.machine.processes import ProcessClock, process_clock

LOOK_S = 0.5
"""Between two looks."""

STILL_LOOKS = 6
"""So many looks without a sign of life are a standstill."""

_STOPPED = frozenset("Tt")
_STANDS = frozenset("STt")  # of a process that waits or is stopped; not for a disk or a core


@dataclass(frozen=True, slots=True)
class ProcessLook:
    """How far a process is, and what it and all that it has started do and have used."""

    steps: tuple[int, ...]
    clocks: tuple[ProcessClock, ...]  # its own first; empty when it is gone

    @classmethod
    def at(cls, pid: int, steps: tuple[int, ...]) -> ProcessLook:
        return cls(steps, _clocks(pid))

    @property
    def is_stopped(self) -> bool:
        """By a signal or a debugger."""
        return bool(self.clocks) and self.clocks[0].state in _STOPPED

    @property
    def stands(self) -> bool:
        """Whether neither it nor a child of its runs or waits for a disk."""
        return bool(self.clocks) and all(clock.state in _STANDS for clock in self.clocks)


class StandstillWatch:
    """The suspects are those that are furthest behind, since the others may be waiting for them; of
    these those that a signal or a debugger has stopped, if there are any.
    """

    def __init__(self, sleeping_looks: int = STILL_LOOKS) -> None:
        """So many looks may find a process asleep; of a stopped one a few are enough."""
        self._sleeping_looks = sleeping_looks
        self._seen: dict[int, ProcessLook] = {}
        self._num_looks = 0

    @property
    def seconds(self) -> float:
        """For how long those that were found have stood still."""
        return self._num_looks * LOOK_S

    def look(self, looks: Mapping[int, ProcessLook]) -> list[int]:
        """Which of them (by their numbers) have stood still for so many looks; empty for now."""
        least = min(look.steps for look in looks.values())
        behind = {number: look for number, look in looks.items() if look.steps == least}
        stopped = {number: look for number, look in behind.items() if look.is_stopped}
        seen = stopped or behind
        is_still = seen == self._seen and all(look.stands for look in seen.values())
        self._num_looks = self._num_looks + 1 if is_still else 0
        self._seen = seen
        enough = STILL_LOOKS if stopped else self._sleeping_looks
        return list(seen) if self._num_looks >= enough else []


def _clocks(pid: int) -> tuple[ProcessClock, ...]:
    """Of the process and of all that it has started, such as a compiler that it waits for."""
    import psutil

    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.Error:  # gone, or not to be seen by its user
        children = []
    clocks = map(process_clock, (pid, *(child.pid for child in children)))
    return tuple(clock for clock in clocks if clock is not None)
