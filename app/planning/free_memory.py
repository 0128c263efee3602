"""RAM that a new process could get here: the system's, or its control group's if that is less."""

from __future__ import annotations

from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")
_FILES = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)
_UNLIMITED = 1 << 60  # cgroup v1 writes a huge number where v2 writes `max`


def free_ram_bytes(cgroup: Path = _CGROUP) -> int:
    """Bytes; the engine looks at the same numbers."""
    free = int(psutil.virtual_memory().available)
    for limit_name, usage_name in _FILES:
        try:
            limit, usage = (
                (cgroup / name).read_text().strip() for name in (limit_name, usage_name)
            )
        except OSError:
            continue
        if limit != "max" and int(limit) < _UNLIMITED:
            free = min(free, max(0, int(limit) - int(usage)))
    return free
