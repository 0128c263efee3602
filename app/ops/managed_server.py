"""One server under our care: supervisor, log parser and registry record put together.

Says what happens as logparse events; draws nothing.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from app.client.server import HealthStatus, check_health
from app.ops.launch_specs import LaunchSpec
from app.ops.log_sink import LogSink
from app.ops.readiness import StartOutcome, wait_until_ready
from app.ops.server_registry import ServerRecord, ServerRegistry
from app.ops.supervisor import StopReport, StopTimes, Supervisor
from logparse import Event, LogParser, LogReport

_EVENTS_KEPT = 2000
_HEALTH_TIMEOUT_S = 1.0
_WATCH_INTERVAL_S = 1.0


class ManagedServer:
    """Start, follow and stop one server."""

    def __init__(
        self,
        spec: LaunchSpec,
        *,
        name: str,
        log_path: Path,
        registry: ServerRegistry,
        times: StopTimes | None = None,
    ) -> None:
        self.spec = spec
        self.name = name
        self.log_path = log_path
        self._registry = registry
        self._parser = LogParser()
        self._events: deque[Event] = deque(maxlen=_EVENTS_KEPT)
        self._lock = threading.Lock()
        self._sink = LogSink(log_path, secrets=_secrets(spec), on_line=self._read_line)
        self._supervisor = Supervisor(spec, self._sink, times)
        self._started_at = 0.0
        self._watched_at = 0.0

    def start(self) -> None:
        """Start the process and leave a record of it."""
        self._started_at = time.monotonic()
        self._supervisor.start()
        self._registry.add(
            ServerRecord(
                name=self.name,
                pid=self._supervisor.pid,
                create_time=self._supervisor.create_time,
                supervisor_pid=os.getpid(),
                url=self.spec.url,
                model=self.spec.model,
                engine=self.spec.engine,
                log_path=str(self.log_path),
            )
        )

    def wait_until_ready(
        self, timeout_s: float, is_stop_requested: Callable[[], bool], on_tick: Callable[[], None]
    ) -> StartOutcome:
        """Wait for /health; `on_tick` is called several times a second meanwhile."""

        def tick() -> None:
            self.watch()
            on_tick()

        return wait_until_ready(
            is_ready=self.is_ready,
            is_alive=self.is_alive,
            is_stop_requested=is_stop_requested,
            timeout_s=timeout_s,
            on_tick=tick,
        )

    def is_ready(self) -> bool:
        """Ask the server itself."""
        return check_health(self.spec.url, timeout_s=_HEALTH_TIMEOUT_S) is HealthStatus.READY

    def is_alive(self) -> bool:
        """True while the server's first process runs."""
        return self._supervisor.is_alive()

    @property
    def exit_code(self) -> int | None:
        """Exit status of the first process, None while it runs."""
        return self._supervisor.exit_code

    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started_at

    def watch(self) -> None:
        """Note new processes of the tree, at most once a second."""
        now = time.monotonic()
        if now - self._watched_at >= _WATCH_INTERVAL_S:
            self._watched_at = now
            self._supervisor.watch()

    def take_events(self) -> tuple[Event, ...]:
        """What the log has told since the last call."""
        with self._lock:
            events = tuple(self._events)
            self._events.clear()
        return events

    def report(self) -> LogReport:
        """All that the log has told so far."""
        with self._lock:
            return self._parser.report()

    def log_tail(self, count: int) -> list[str]:
        """The last lines of the log."""
        return self._sink.tail(count)

    @property
    def log_write_error(self) -> str | None:
        """Why the log file is incomplete, if it is."""
        return self._sink.write_error

    def hurry(self) -> None:
        """Make `stop` skip its waiting."""
        self._supervisor.hurry()

    def stop(self) -> StopReport:
        """End every process of the server and forget its record."""
        report = self._supervisor.stop()
        self._registry.remove(self.name)
        return report

    def _read_line(self, line: str) -> None:
        with self._lock:
            self._events.extend(self._parser.feed(line))


def _secrets(spec: LaunchSpec) -> tuple[str, ...]:
    """Values that must not reach the log, whatever the server prints."""
    named = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "VLLM_API_KEY", "STOKER_API_KEY")
    return (*spec.secrets.values(), *(os.environ.get(name, "") for name in named))
