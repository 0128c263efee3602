"""Waits for a started server until it is ready, gone, late or no longer wanted."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable

POLL_S = 0.1


class StartOutcome(enum.Enum):
    """How the wait for a server ended."""

    READY = "ready"
    EXITED = "exited"
    TIMED_OUT = "timed out"
    STOP_REQUESTED = "stop requested"


def wait_until_ready(
    *,
    is_ready: Callable[[], bool],
    is_alive: Callable[[], bool],
    is_stop_requested: Callable[[], bool],
    timeout_s: float,
    still_s: Callable[[], float],
    on_tick: Callable[[], None] = lambda: None,
    sleep: Callable[[float], None] = time.sleep,
) -> StartOutcome:
    """Ask again and again; a server that is gone is never ready, whoever answers on its port.

    `still_s` says for how long nothing has moved: that, not the time since the start, is limited.
    """
    while True:
        on_tick()
        if is_stop_requested():
            return StartOutcome.STOP_REQUESTED
        if not is_alive():
            return StartOutcome.EXITED
        if is_ready() and is_alive():
            return StartOutcome.READY
        if still_s() >= timeout_s:
            return StartOutcome.TIMED_OUT
        sleep(POLL_S)
