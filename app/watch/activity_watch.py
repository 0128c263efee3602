"""A thread that asks a ready server every few seconds what it does and tells when that changes.

Nothing waits in an idle server whose core hangs, so that no counter has to move: from time to time
it is asked for one token. A busy server shows by its counters how it is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import psutil

from app.registry.states import ServerState
from app.watch.client_clock import ClientClock, ProbeCount
from app.watch.forward_progress import ProgressJudge, Verdict, open_scraper, read_counters

if TYPE_CHECKING:
    import httpx

DEFAULT_IDLE_PROBE_S = 300.0
_INTERVAL_S = 2.0


class ActivityWatch:
    """Starts with `start`; `stop` returns when nothing more will be told."""

    def __init__(
        self,
        url: str,
        stall_s: float,
        *,
        processes: Callable[[], Iterable[psutil.Process]],
        on_change: Callable[[Verdict], None],
        probe: IdleProbe | None = None,
    ) -> None:
        self._probe = probe
        self._url = url
        self._judge = ProgressJudge(stall_s)
        self._clients = ClientClock(time.monotonic())
        self._verdict = Verdict(ServerState.READY)
        self._processes = processes
        self._on_change = on_change
        self._is_over = threading.Event()
        self._interval_s = min(_INTERVAL_S, stall_s / 3)
        self._thread = threading.Thread(target=self._run, name="activity-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End it; at most one time-out of a scrape is waited for."""
        self._is_over.set()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def still_s(self) -> float | None:
        """Seconds since a busy engine moved; None for one that need not move."""
        return self._judge.still_s(time.monotonic())

    @property
    def moved_at(self) -> float | None:
        """When it last made a step, or answered with nothing to do; None while it is stalled."""
        return None if self._verdict.state is ServerState.STALLED else self._judge.moved_at

    @property
    def client_idle_s(self) -> float | None:
        """Seconds without a request of a client; None for a server that does not show its queue."""
        return self._clients.idle_s(time.monotonic())

    def _run(self) -> None:
        told: Verdict | None = None
        with open_scraper(self._url) as client:
            while not self._is_over.wait(self._interval_s):
                self._verdict = verdict = self._look(client)
                if _is_news(verdict, told) and not self._is_over.is_set():
                    told = verdict
                    self._on_change(verdict)

    def _look(self, client: httpx.Client) -> Verdict:
        was_asking = self._probe is not None and self._probe.is_asking
        reading = read_counters(client)
        self._clients.note(reading, self._probes(was_asking))
        verdict = self._judge.judge(reading, self._stopped())
        if self._probe is None:
            return verdict
        complaint = self._probe.look(is_idle=verdict.state in (ServerState.IDLE, ServerState.READY))
        return verdict if complaint is None else Verdict(ServerState.STALLED, complaint)

    def _probes(self, was_asking: bool) -> ProbeCount:
        """A question that ended during the look may still have been in the queue."""
        if self._probe is None:
            return ProbeCount()
        return ProbeCount(self._probe.num_asked, was_asking or self._probe.is_asking)

    def _stopped(self) -> list[str]:
        return [_describe(one) for one in self._processes() if _is_stopped(one)]


def _is_news(verdict: Verdict, told: Verdict | None) -> bool:
    """Not when only the words of its reason have changed."""
    if told is None:
        return True
    return (verdict.state, verdict.is_lasting) != (told.state, told.is_lasting)


def _is_stopped(process: psutil.Process) -> bool:
    try:
        return process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.name()} (pid {process.pid})"
    except psutil.Error:
        return f"pid {process.pid}"


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
        self.num_asked = 0

    @property
    def is_asking(self) -> bool:
        """Whether a question of ours is on its way."""
        return self._asking is not None and self._asking.is_alive()

    def look(self, *, is_idle: bool) -> str | None:
        """Why an idle server counts as hung, until it has answered; None if it does not."""
        if self.is_asking:
            return self._complaint
        now = self._clock()
        if not is_idle:
            self._complaint = None
            self._due_at = now + self._every_s
        elif now >= self._due_at:
            self._due_at = now + self._every_s
            self.num_asked += 1
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
