"""The cores that this process may use, shared out between processes that compute together."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

_NODES = Path("/sys/devices/system/node")
_CPUS = Path("/sys/devices/system/cpu")


def usable_cores() -> int:
    """Those of its affinity, where the system has one; a quota of CPU time is not looked at."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def pin_to_cores(number: int, count: int) -> int:
    """Keep this process to its part of the cores, as process `number` of `count`; its size.

    Where there are fewer cores than processes, each may use any, but counts on one.
    """
    if not hasattr(os, "sched_getaffinity"):
        return max(1, usable_cores() // count)
    part = core_part(ordered_cores(os.sched_getaffinity(0)), number, count)
    if part:
        os.sched_setaffinity(0, part)
    return max(1, len(part))


def core_part(cores: list[int], number: int, count: int) -> list[int]:
    """Neighbours in the list, about as many for each; empty when there are too few."""
    if len(cores) < count:
        return []
    return cores[len(cores) * number // count : len(cores) * (number + 1) // count]


def ordered_cores(cores: Iterable[int]) -> list[int]:
    """By NUMA node, then by physical core, so that neighbours share memory and caches."""
    nodes = {
        core: int(folder.name.removeprefix("node"))
        for folder in _NODES.glob("node[0-9]*")
        for core in _core_list(folder / "cpulist")
    }
    return sorted(cores, key=lambda core: (nodes.get(core, 0), _first_sibling(core), core))


def _first_sibling(core: int) -> int:
    """The lowest of the hardware threads that share its physical core."""
    return min(_core_list(_CPUS / f"cpu{core}" / "topology" / "thread_siblings_list"), default=core)


def _core_list(path: Path) -> list[int]:
    """`0-3,8` as numbers; empty where there is no such file."""
    try:
        text = path.read_text(encoding="ascii")
    except OSError:
        return []
    pairs = re.findall(r"(\d+)(?:-(\d+))?", text)
    return [core for first, last in pairs for core in range(int(first), int(last or first) + 1)]
