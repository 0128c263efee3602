"""How much RAM a process can still get here: the system's, or less where a control group limits it.

The only reader of free memory and memory limits; the worker sizes its KV cache, `stoker plan`
counts and `stoker doctor` judges by it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.machine.control_groups import ROOT, group_folders, read_number, read_text

# Without a limit v1 writes the largest multiple of a page; nobody has this much.
_UNLIMITED = 1 << 60


MACHINE = "machine"
"""Name of the level that no control group sets."""


@dataclass(frozen=True, slots=True)
class RamLevel:
    """RAM as it is free at one level: the machine's, or below the limit of a control group.

    `folder` is the group's; only processes in it or below it count there. None is all of them.
    """

    name: str
    free_bytes: int
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A control group's limit and what its processes hold, both in bytes.

    `used_bytes` is without the page cache, which the kernel gives up before it kills: model files
    that were read lie there, and are no reason to refuse a start.
    """

    folder: Path
    limit_bytes: int
    used_bytes: int

    @property
    def free_bytes(self) -> int:
        """What is left below the limit."""
        return max(0, self.limit_bytes - self.used_bytes)


def free_ram_bytes(root: Path = ROOT) -> int:
    """Bytes that this process can still get, the limits of its control groups included."""
    return min(level.free_bytes for level in ram_levels(root))


def ram_levels(root: Path = ROOT) -> Iterator[RamLevel]:
    """The machine first, then every limit that holds for this process."""
    import psutil

    yield RamLevel(MACHINE, int(psutil.virtual_memory().available))
    for limit in memory_limits(root):
        yield RamLevel(str(limit.folder), limit.free_bytes, limit.folder)


def tightest_limit(root: Path = ROOT) -> MemoryLimit | None:
    """The limit with the least left, of this process's control group and all above it."""
    return min(memory_limits(root), key=lambda limit: limit.free_bytes, default=None)


def memory_limits(root: Path = ROOT) -> Iterator[MemoryLimit]:
    """Every limit that holds for this process, its own group's first."""
    for folder in group_folders("memory", root):
        details = _details(folder / "memory.stat")
        # Above memory.high (v2) a process is slowed to a crawl. The hierarchical limit (v1) is that
        # of the groups above, which a container does not see.
        candidates = (
            *(read_number(folder / f"memory.{name}") for name in ("max", "high", "limit_in_bytes")),
            details.get("hierarchical_memory_limit"),
        )
        limits = [one for one in candidates if one is not None and one < _UNLIMITED]
        if limits:
            yield MemoryLimit(folder, min(limits), _used_bytes(folder, details))


def _used_bytes(folder: Path, details: dict[str, int]) -> int:
    """v1 counts the groups below under `total_`, v2 in every line."""
    current = read_number(folder / "memory.current")
    if current is None:
        current = read_number(folder / "memory.usage_in_bytes") or 0
    # A file is moved from one list to the other when it is read again: both can be given up.
    clean = sum(
        details.get(f"total_{name}", details.get(name, 0))
        for name in ("inactive_file", "active_file")
    )
    return max(0, current - clean)


def _details(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in read_text(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
