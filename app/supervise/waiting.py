"""Waiting for what no event tells: it is asked again and again until a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

POLL_S = 0.05


def wait_until(is_met: Callable[[], bool], timeout_s: float) -> bool:
    """Whether it came true in time; it is asked once in any case."""
    deadline = time.monotonic() + timeout_s
    while not is_met():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True
