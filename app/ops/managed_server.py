"""One server under our care: supervisor, log parser and registry record put together.

Says what happens as logparse events; draws nothing.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from app.ops.activity_watch import ActivityWatch
from app.ops.forward_progress import DEFAULT_STALL_S, Verdict
from app.ops.launch_specs import LaunchSpec
from app.ops.log_sink import LogSink
from app.ops.readiness import StartOutcome, wait_until_ready
from app.ops.ready_probe import ReadyProbe
from app.ops.server_registry import FAILED, ServerRecord, ServerRegistry
from app.ops.socket_folders import remove_dead_socket_folders
from app.ops.start_words import without_api_key
from app.ops.supervisor import StopReport, StopTimes, Supervisor
from logparse import Event, LogParser, LogReport

_EVENTS_KEPT = 2000
_WATCH_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class ServerCare:
    """How a server is looked after. `serve_args` are what `stoker restart` serves again.

    A background server's failure stays in the registry, since nobody saw it.
    """

    serve_args: tuple[str, ...] = ()
    is_background: bool = False
    stall_s: float = DEFAULT_STALL_S


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
        care: ServerCare | None = None,
    ) -> None:
        self.spec = spec
        self.name = name
        self.log_path = log_path
        self.care = care or ServerCare()
        self._registry = registry
        self._record: ServerRecord | None = None
        self._record_lock = threading.Lock()
        self._activity: ActivityWatch | None = None
        self._stall: str | None = None
        self._parser = LogParser()
        self._events: deque[Event] = deque(maxlen=_EVENTS_KEPT)
        self._lock = threading.Lock()
        self._sink = LogSink(log_path, secrets=_secrets(spec), on_line=self._read_line)
        self._supervisor = Supervisor(spec, self._sink, times)
        self._probe = ReadyProbe(spec)
        self._started_at = 0.0
        self._watched_at = 0.0

    def start(self) -> None:
        """Start the process and leave a record of it."""
        remove_dead_socket_folders()
        self._started_at = time.monotonic()
        self._supervisor.start()
        try:
            self._record = self._new_record()
            self._registry.add(self._record)
        except BaseException:
            self._record = None  # what is there is another server's
            self._supervisor.hurry()
            self._supervisor.stop()
            raise

    def _new_record(self) -> ServerRecord:
        return ServerRecord(
            name=self.name,
            pid=self._supervisor.pid,
            create_time=self._supervisor.create_time,
            supervisor_pid=os.getpid(),
            supervisor_create_time=psutil.Process().create_time(),
            url=self.spec.url,
            model=self.spec.model,
            engine=self.spec.engine,
            log_path=str(self.log_path),
            stop_s=self.spec.shutdown_timeout_s,
            command=without_api_key(self.spec.argv),
            serve_args=self.care.serve_args,
            folder=str(Path.cwd()),
            needs_key=bool(self.spec.secrets),
        )

    def note_state(self, state: str, detail: str | None = None) -> None:
        """Write into the record what `stoker ps` shows."""
        with self._record_lock:
            record = self._record
            if record is None or (record.state, record.detail) == (state, detail):
                return
            self._record = dataclasses.replace(record, state=state, detail=detail)
            self._registry.replace(self._record)

    def note_failure(self, cause: str) -> None:
        """After `stop`: keep the record of a background server that ended by itself."""
        with self._record_lock:
            if self._record is not None and self.care.is_background:
                failed = dataclasses.replace(self._record, state=FAILED, detail=cause)
                self._registry.replace(failed)

    def begin_service(self) -> None:
        """It is ready: from now on its counters are watched."""
        self.note_state("ready")
        self._activity = ActivityWatch(
            self.spec.url,
            self.care.stall_s,
            processes=self._supervisor.processes,
            on_change=self._note_activity,
        )
        self._activity.start()

    def take_stall(self) -> str | None:
        """Why it counts as stalled, once for each stall."""
        reason, self._stall = self._stall, None
        return reason

    def _note_activity(self, verdict: Verdict) -> None:
        self._stall = verdict.reason
        self.note_state(verdict.activity.value, verdict.reason)

    def wait_until_ready(
        self, timeout_s: float, is_stop_requested: Callable[[], bool], on_tick: Callable[[], None]
    ) -> StartOutcome:
        """Wait for the first token; `on_tick` is called several times a second meanwhile."""

        def tick() -> None:
            if self.watch():
                self.note_state("starting", self._running_phase())
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
        return self._probe.is_ready()

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

    def watch(self) -> bool:
        """Note new processes of the tree, at most once a second; True when it was time."""
        now = time.monotonic()
        if now - self._watched_at < _WATCH_INTERVAL_S:
            return False
        self._watched_at = now
        self._supervisor.watch()
        return True

    def _running_phase(self) -> str | None:
        phases = self.report().phases
        return next((phase.name for phase in phases if phase.state == "running"), None)

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
        if self._activity is not None:
            self._activity.stop()
        self.note_state("draining")
        report = self._supervisor.stop()
        remove_dead_socket_folders()
        if self._record is not None:
            self._registry.remove(self.name)
        return report

    def _read_line(self, line: str) -> None:
        with self._lock:
            self._events.extend(self._parser.feed(line))


def _secrets(spec: LaunchSpec) -> tuple[str, ...]:
    """Values that must not reach the log, whatever the server prints."""
    named = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "VLLM_API_KEY", "STOKER_API_KEY")
    return (*spec.secrets.values(), *(os.environ.get(name, "") for name in named))
