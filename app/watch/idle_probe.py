"""Finds an idle server whose core hangs: nothing waits in it, so that no counter has to move.

From time to time it is asked for one token. A busy server shows by its counters how it is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

DEFAULT_IDLE_PROBE_S = 300.0


class IdleProbe:
    """`look` never waits: a thread of its own asks, and gives up after `patience_s`."""

    def __init__(
        self,
        ask: Callable[[float], bool],
        *,
        every_s: float,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._every_s = every_s
        self._patience_s = patience_s
        self._clock = clock
        self._due_at = clock() + every_s
        self._complaint: str | None = None
        self._asking: threading.Thread | None = None

    def look(self, *, is_idle: bool) -> str | None:
        """Why an idle server counts as hung, until it has answered; None if it does not."""
        if self._asking is not None and self._asking.is_alive():
            return self._complaint
        now = self._clock()
        if not is_idle:
            self._complaint = None
            self._due_at = now + self._every_s
        elif now >= self._due_at:
            self._due_at = now + self._every_s
            self._asking = threading.Thread(target=self._run, name="idle-probe", daemon=True)
            self._asking.start()
        return self._complaint

    def _run(self) -> None:
        began = self._clock()
        if self._ask(self._patience_s):
            self._complaint = None
        else:
            waited = self._clock() - began
            self._complaint = f"an idle server gave no token within {waited:.0f} s"
