"""StandstillWatch: finds processes that owe an answer and do nothing for it. Linux.

Looks are counted, not seconds, so that a stop of all processes is nobody's standstill.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.machine.processes import ProcessClock, process_clock

LOOK_S = 0.5
"""Between two looks."""

_STILL_LOOKS = 6
_STOPPED = frozenset("Tt")
_STANDS = frozenset("STt")  # of a process that waits or is stopped; not for a disk or a core


class StandstillWatch:
    """The suspects are those that are furthest behind, since the others may be waiting for them; of
    these those that a signal or a debugger has stopped, if there are any.
    """

    def __init__(self, sleeping_looks: int = _STILL_LOOKS) -> None:
        """So many looks may find a process asleep; of a stopped one a few are enough."""
        self._sleeping_looks = sleeping_looks
        self._seen: dict[int, tuple[tuple[int, ...], tuple[ProcessClock, ...]]] = {}
        self._num_looks = 0

    @property
    def seconds(self) -> float:
        """For how long those that were found have stood still."""
        return self._num_looks * LOOK_S

    def look(self, progress: Mapping[int, tuple[int, ...]]) -> list[int]:
        """Pids of those that have stood still for so many looks; empty for now.

        `progress` says how far each process is.
        """
        least = min(progress.values())
        behind = [pid for pid, steps in progress.items() if steps == least]
        stopped = [pid for pid in behind if is_stopped(pid)]
        suspects = stopped or behind
        seen = {pid: (least, _clocks(pid)) for pid in suspects}
        is_still = seen == self._seen and all(_stand(clocks) for _, clocks in seen.values())
        self._num_looks = self._num_looks + 1 if is_still else 0
        self._seen = seen
        enough = _STILL_LOOKS if stopped else self._sleeping_looks
        return suspects if self._num_looks >= enough else []


def is_stopped(pid: int) -> bool:
    """By a signal or a debugger."""
    clock = process_clock(pid)
    return clock is not None and clock.state in _STOPPED


def _clocks(pid: int) -> tuple[ProcessClock, ...]:
    """Of the process and of all that it has started, such as a compiler that it waits for."""
    import psutil

    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.Error:  # gone, or not to be seen by its user
        children = []
    clocks = map(process_clock, (pid, *(child.pid for child in children)))
    return tuple(clock for clock in clocks if clock is not None)


def _stand(clocks: tuple[ProcessClock, ...]) -> bool:
    return bool(clocks) and all(clock.state in _STANDS for clock in clocks)
