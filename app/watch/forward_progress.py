"""Tells idle, busy and stalled servers apart by what their counters do; judges, does not scrape.

A queue that is not empty while no counter moves is stalled, however well /health answers; a long
queue that moves is not.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.client.errors import ClientError
from app.client.metrics.exposition import parse_exposition
from app.client.metrics.sample import read_sample
from app.client.transport import connection_errors, open_client
from app.registry.states import ServerState

if TYPE_CHECKING:
    import httpx

DEFAULT_STALL_S = 60.0
_SCRAPE_TIMEOUT_S = 2.0
_ENGINE_PREFIXES = ("vllm:", "sglang:", "llamacpp:")  # process_ and http_ move with every scrape
_STEP_ENDINGS = ("_total", "iteration_tokens_total_count")  # a gauge moves when a request arrives


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at a server. `queue` is None when it is not exposed; no `counters`: no answer.

    `finished` counts the requests that have ended, None where nobody counts them. `is_asleep` says
    that somebody put the server to sleep.
    """

    time_s: float
    queue: float | None
    counters: frozenset[tuple[str, str, str]] | None
    finished: float | None = None
    is_asleep: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a ready server is, and why if it is stalled. `is_lasting`: for all of --stall-after."""

    state: ServerState
    reason: str | None = None
    is_lasting: bool = True


def open_scraper(url: str) -> httpx.Client:
    """One connection for many readings."""
    return open_client(url, timeout_s=_SCRAPE_TIMEOUT_S)


def read_counters(client: httpx.Client) -> Reading:
    """Scrape /metrics; a server without it still answers, one that hangs does not."""
    now = time.monotonic()
    try:
        with connection_errors(str(client.base_url)):
            response = client.get("/metrics")
    except ClientError:
        return Reading(now, None, None)
    text = "" if response.is_error else response.text
    sample = read_sample(text, now)
    parts = (sample.running, sample.waiting) if sample is not None else ()
    known = [part for part in parts if part is not None]
    finished = None if sample is None else sample.finished
    is_asleep = sample is not None and sample.sleep_level > 0
    queue = sum(known) if known else None
    return Reading(now, queue, _counters(text), finished, is_asleep)


def _counters(text: str) -> frozenset[tuple[str, str, str]]:
    return frozenset(
        (name, str(sorted(sample.labels.items())), str(sample.value))
        for name, samples in parse_exposition(text).samples.items()
        if name.startswith(_ENGINE_PREFIXES) and name.endswith(_STEP_ENDINGS)
        for sample in samples
        if sample.labels.get("finished_reason") != "abort"  # a client that gave up is no step
    )


class ProgressJudge:
    """Feed it readings in the order of their times."""

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._last: Reading | None = None
        self._moved_at: float | None = None
        self._answered_at: float | None = None
        self._stopped_at: float | None = None
        self._verdict = Verdict(ServerState.READY)

    def judge(self, reading: Reading, stopped: Sequence[str] = ()) -> Verdict:
        """`stopped` names processes of the server that somebody has stopped (SIGSTOP)."""
        self._verdict = self._judge(reading, stopped)
        return self._verdict

    def still_s(self, now_s: float) -> float | None:
        """Seconds since the last step; None while there is nothing to do, or nothing to see."""
        if self._verdict.state not in (ServerState.BUSY, ServerState.STALLED):
            return None
        return None if self._moved_at is None else max(0.0, now_s - self._moved_at)

    @property
    def moved_at(self) -> float | None:
        """When it made a step, or answered with nothing to do; None before the first look."""
        return self._moved_at

    def _judge(self, reading: Reading, stopped: Sequence[str]) -> Verdict:
        if self._answered_at is None:
            self._answered_at = self._moved_at = reading.time_s
        if stopped:
            return self._stopped(reading.time_s, stopped)
        self._stopped_at = None
        if reading.counters is None:
            return self._unanswered(reading.time_s - self._answered_at)
        self._answered_at = reading.time_s
        last, self._last = self._last, reading
        # What waits since the last look came after it.
        if last is None or not last.queue or reading.counters != last.counters:
            self._moved_at = reading.time_s
        if reading.is_asleep:  # what waits there need not move
            self._moved_at = reading.time_s
            return Verdict(ServerState.ASLEEP)
        if reading.queue is None:
            return Verdict(ServerState.READY)
        if reading.queue == 0:
            return Verdict(ServerState.IDLE)
        still_s = reading.time_s - (self._moved_at or 0.0)
        if still_s < self._stall_s:
            return Verdict(ServerState.BUSY)
        requests = "1 request" if reading.queue == 1 else f"{reading.queue:.0f} requests"
        return Verdict(
            ServerState.STALLED, f"{requests} in the engine, no step for {still_s:.0f} s"
        )

    def _stopped(self, now_s: float, names: Sequence[str]) -> Verdict:
        """Said at once, since nobody has to wait to see it; a debugger may only look, though."""
        if self._stopped_at is None:
            self._stopped_at = now_s
        is_lasting = now_s - self._stopped_at >= self._stall_s
        reason = f"stopped by a signal: {', '.join(names)}"
        return Verdict(ServerState.STALLED, reason, is_lasting)

    def _unanswered(self, silent_s: float) -> Verdict:
        if silent_s < self._stall_s:
            return self._verdict
        return Verdict(ServerState.STALLED, f"no answer for {silent_s:.0f} s")
