"""Tells the service manager how a server is, through its whole life; without one, says nothing.

READY=1 comes after the first token, EXTEND_TIMEOUT_USEC while a start moves, WATCHDOG=1 while the
engine moves or has nothing to do and answers, STOPPING=1 for an end that was asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from app.supervise.managed_server import ManagedServer
from app.supervise.service_notify import ServiceManager
from engine.model_store.progress import StoreProgress

_LEAST_INTERVAL_S = 1.0
_STOP_MARGIN_S = 45.0  # after the drain: every step of stopping at its longest
_WATCHDOG_SHARE = 3  # alive this often within the silence that is allowed


class PreparationReport:
    """What comes before the first process: a model that is fetched and made ready.

    Call it with each step of that; a download that stands still gets no more time.
    """

    def __init__(
        self,
        manager: ServiceManager,
        model: str,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._manager = manager
        self._model = model
        self._timeout_s = timeout_s
        self._clock = clock
        self._step = ""
        self._extended_at = -_LEAST_INTERVAL_S

    def __call__(self, progress: StoreProgress) -> None:
        if progress.step != self._step:
            self._step = progress.step
            self._manager.status(progress.title(self._model) + progress.size)
        if self._clock() - self._extended_at >= _LEAST_INTERVAL_S:
            self._extended_at = self._clock()
            self._manager.more_time(self._timeout_s)


class ServiceReport:
    """Call its methods at each turn of the supervisor's loops; they are cheap."""

    def __init__(
        self,
        server: ManagedServer,
        start_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._manager = server.care.service
        self._start_timeout_s = start_timeout_s
        self._clock = clock
        self._looked_at = self._extended_at = self._alive_at = clock()
        self._status = ""
        self._is_ready = False

    def starting(self) -> None:
        """A start goes on: which part, and more time for it when it has moved."""
        if not self._is_time():
            return
        status, moved_at = self._server.status(), self._server.moved_at
        word = "starting again" if status.num_restarts else "starting"
        self._say(f"{word}: {status.phase or 'the engine is loaded'}")
        if moved_at is None or moved_at <= self._extended_at:
            return
        self._extended_at = self._clock()
        if self._is_ready:
            self._manager.alive()  # the watchdog goes on through our own restarts
        else:
            self._manager.more_time(self._start_timeout_s)

    def ready(self) -> None:
        """The first token has come."""
        self._is_ready = True
        self._alive_at = self._clock()
        self._say(f"ready at {self._server.spec.addresses}")
        self._manager.ready()

    def running(self) -> None:
        """It serves: say what has changed, and that it lives where that can be seen."""
        if not self._is_time():
            return
        status = self._server.status()
        at = f"{self._server.spec.addresses}"
        self._say(f"{status.state} at {at}" + (f": {status.detail}" if status.detail else ""))
        watchdog_s, now = self._manager.watchdog_s, self._clock()
        moved_at = self._server.moved_at
        if watchdog_s is None or now - self._alive_at < watchdog_s / _WATCHDOG_SHARE:
            return
        if moved_at is not None and moved_at > self._alive_at:
            self._alive_at = now
            self._manager.alive()

    def waiting(self, reason: str) -> None:
        """Our own restart policy waits for its next start."""
        self._say(reason)
        if self._is_ready:
            self._manager.alive()

    def reloading(self) -> None:
        """The settings are read again; `reloaded` ends it."""
        self._manager.reloading()

    def reloaded(self) -> None:
        """New settings count, or the old ones go on."""
        if self._is_ready:
            self._manager.ready()

    def stopping(self) -> None:
        """Somebody asked for the end; running requests may take the drain's time."""
        self._manager.stopping()
        self._manager.more_time(self._server.spec.shutdown_timeout_s + _STOP_MARGIN_S)
        self._say("stopping: running requests are finished")

    def failed(self, reason: str) -> None:
        """The last words; the exit code says the rest."""
        self._say(reason)

    def _say(self, text: str) -> None:
        line = text.partition("\n")[0]
        if line != self._status:
            self._status = line
            self._manager.status(line)

    def _is_time(self) -> bool:
        now = self._clock()
        if now - self._looked_at < _LEAST_INTERVAL_S:
            return False
        self._looked_at = now
        return True
