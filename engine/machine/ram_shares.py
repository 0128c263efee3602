"""How much RAM a start of our engine may count on while other engines run or wait beside it.

A KV cache takes its pages one by one as they are used, so that free RAM alone does not show what is
spoken for. Every engine therefore counts with what it may come to hold, and what it holds now is
added to what is free. The sum of both depends neither on how far the others have got nor on which
of them wait: starts at once find what starts in turn would.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.machine.control_groups import ROOT
from engine.machine.device_starts import RUNNING, DeviceStart, DeviceStarts, own_start
from engine.machine.memory import RamLevel, ram_levels
from engine.machine.private_files import replace_file
from engine.machine.sizes import MIB

PROCESS_BYTES = 640 * MIB
"""What the processes of an engine take beside weights and KV cache, torch's libraries included."""
_PROCESS_STEP = 256 * MIB
_STEADY_SHARE = 32  # what moved by less than this part of it has not moved
_FOUND = "found.steady"

HeldBytes = Callable[[Sequence[int]], int]


def held_by(pids: Sequence[int]) -> int:
    """Bytes of RAM that nobody else can have while these processes live."""
    return sum(map(_anonymous_bytes, pids))


def descendants_of(pid: int) -> list[int]:
    """Children of a process, theirs and so on."""
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def start_bytes(weight_bytes: int, held_bytes: int) -> int:
    """What a start counts for without its KV cache: the same each time, if it can be."""
    more = held_bytes - weight_bytes - PROCESS_BYTES
    return weight_bytes + PROCESS_BYTES + max(0, -(-more // _PROCESS_STEP)) * _PROCESS_STEP


@dataclass(frozen=True, slots=True)
class RamShares:
    """RAM among the starts of one machine; `starts` keeps what was found there before."""

    starts: DeviceStarts
    root: Path = ROOT
    held: HeldBytes = held_by
    descendants: Callable[[int], Sequence[int]] = descendants_of

    def own_bytes(self, weight_bytes: int) -> int:
        """What this process's start counts for, its KV cache not yet among it."""
        return start_bytes(weight_bytes, self.held(own_start().members))

    def left(self, weight_bytes: int, num_replicas: int = 1) -> int:
        """Bytes for the KV cache of this process's start, which has its weights and its turn.

        Replicas share one such sum, from which only weights and processes of all are taken.
        """
        own = own_start()
        count = num_replicas * start_bytes(weight_bytes, self.held(own.members))
        others = self.starts.others()
        known, found, left = self._known(), {}, []
        for level in ram_levels(self.root):
            beside = [one for one in others if _counts_at(one, level)]
            strangers = [one for one in beside if num_replicas == 1 or one.parent != own.parent]
            taken = sum(map(self._counted, strangers)) + count
            total = level.free_bytes + self._held([own, *beside])
            before = known.get(level.name, total)
            found[level.name] = before if _is_near(before, total, total) else total
            left.append((before if _is_near(before, total, total - taken) else total) - taken)
        self._keep(found)
        return max(0, min(left))

    def left_for_new_start(self) -> int:
        """Bytes for a start that has not begun: weights, processes and KV cache."""
        others = self.starts.others()
        return max(0, min(self._without_reserved(level, others) for level in ram_levels(self.root)))

    def _without_reserved(self, level: RamLevel, others: Iterable[DeviceStart]) -> int:
        beside = [one for one in others if _counts_at(one, level)]
        return level.free_bytes + self._held(beside) - sum(map(self._counted, beside))

    def _held(self, starts: Sequence[DeviceStart]) -> int:
        """Replicas have their server in common, and one that has not measured yet is announced by
        its server: whatever that has started belongs to it.
        """
        pids = {pid for one in starts for pid in one.members}
        for one in starts:
            pids.update(() if one.state == RUNNING else self.descendants(one.pid))
        return self.held(sorted(pids))

    def _counted(self, start: DeviceStart) -> int:
        """One that waits counts for nothing yet: it will see what the others took before it."""
        return max(start.held_bytes, self.held(start.members)) if start.state == RUNNING else 0

    def _known(self) -> dict[str, int]:
        try:
            known = json.loads((self.starts.folder / _FOUND).read_bytes())
        except (OSError, ValueError):
            return {}
        is_ours = isinstance(known, dict) and all(isinstance(v, int) for v in known.values())
        return known if is_ours else {}

    def _keep(self, found: dict[str, int]) -> None:
        with contextlib.suppress(OSError):  # no folder, or no room in it: only steadiness is lost
            replace_file(self.starts.folder / _FOUND, json.dumps(found).encode())


def _counts_at(start: DeviceStart, level: RamLevel) -> bool:
    return level.folder is None or Path(start.group).is_relative_to(level.folder)


def _is_near(before: int, now: int, compared_with: int) -> bool:
    """Whether a sum is the same as before, but for what moves all the time."""
    return abs(now - before) * _STEADY_SHARE < compared_with


def _anonymous_bytes(pid: int) -> int:
    """Of one process, in pages that lie in no file; 0 when it is gone."""
    fields = _rollup(pid)
    for name in ("Pss_Anon:", "Anonymous:"):
        if name in fields:
            return fields[name]
    import psutil

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def _rollup(pid: int) -> dict[str, int]:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    except (OSError, ValueError):
        return {}
    pairs = (line.split() for line in lines)
    return {words[0]: int(words[1]) * 1024 for words in pairs if len(words) == 3}
