"""How many CPU cores this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Those of its affinity, where the system has one; a quota of CPU time is not looked at."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
