"""One server under our care, through all of its starts: what is running, its record, its endpoint.

Says what happens as logparse events; draws nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from app.errors import StokerError
from app.launch.launch_specs import LaunchSpec, without_api_key
from app.registry.endpoint_file import EndpointFile
from app.registry.server_registry import ServerRecord, ServerRegistry
from app.registry.states import ServerState
from app.server_logs.log_files import DEFAULT_LOG_BYTES
from app.server_logs.log_sink import new_log_path
from app.supervise.ending import StopReport, StopTimes
from app.supervise.ownerless_files import remove_ownerless_files
from app.supervise.restart_policy import RestartPolicy
from app.supervise.service_notify import ServiceManager
from app.supervise.start_log import StartLog
from app.supervise.status_endpoint import LOOPBACK, StatusEndpoint
from app.supervise.status_pages import SupervisorStatus, page
from app.supervise.supervisor import Supervisor
from app.watch.activity_watch import DEFAULT_IDLE_PROBE_S, ActivityWatch, IdleProbe
from app.watch.forward_progress import DEFAULT_STALL_S, Verdict
from app.watch.readiness import (
    NodeProbe,
    ReadyProbe,
    StartOutcome,
    answers_one_token,
    wait_until_ready,
)
from engine.machine.addresses import url_host
from engine.machine.processes import is_stopped, process_identity

_HALT_S = 3.0
_TELLS_BY_S = 30.0  # a server that shows its queue has done so by then
# What SIGHUP can change; the rest belongs to the start.
_TAKEN_WHILE_RUNNING = ("stall_s", "idle_probe_s", "restart", "max_log_bytes", "exit_when_idle_s")


@dataclass(frozen=True, slots=True)
class ServerCare:
    """How a server is looked after. `serve_args` are what `stoker restart` serves again.

    A background server's failure stays in the registry, since nobody saw it. `exit_when_idle_s`
    ends a server that no client asks for so long. `endpoint_file` tells clients where it is while
    it serves. `read_again` reads the settings once more, for SIGHUP.
    """

    serve_args: tuple[str, ...] = ()
    engine_words: tuple[str, ...] = ()  # of those, what the engine gets
    is_background: bool = False
    stall_s: float = DEFAULT_STALL_S
    idle_probe_s: float | None = DEFAULT_IDLE_PROBE_S  # None: an idle server is not asked
    restart: RestartPolicy = field(default=RestartPolicy())
    max_log_bytes: int = DEFAULT_LOG_BYTES
    status_port: int | None = None
    status_host: str = LOOPBACK
    exit_when_idle_s: float | None = None
    endpoint_file: Path | None = None
    key_file: Path | None = None  # where whoever may read it finds the key of this server
    service: ServiceManager = field(default=ServiceManager())
    read_again: Callable[[], ServerCare] | None = None


class ManagedServer:
    """Start, follow and stop one server; after `clear_away` it can be started again."""

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
        self.care = care or ServerCare()
        self.num_restarts = 0
        self._times = times
        self._registry = registry
        self._record: ServerRecord | None = None
        self._record_lock = threading.Lock()
        self._is_record_old = False  # the last one could not be written
        self._notes: dict[str, bool] = {}  # what the user has to know -> whether it was told
        self._told: list[str] = []
        self._activity: ActivityWatch | None = None
        self._stall: str | None = None
        self._lasting_stall: str | None = None
        self._endpoint = StatusEndpoint(lambda path: page(path, self.status()))
        self._began_at = time.monotonic()
        self._prepare_start(log_path)

    def _prepare_start(self, log_path: Path) -> None:
        """What every start has of its own."""
        secrets = tuple(self.spec.secrets.values())
        self.log = StartLog(log_path, secrets=secrets, max_bytes=self.care.max_log_bytes)
        self._supervisor = Supervisor(self.spec, self.log, self._times)
        self._probe = NodeProbe(self.log.report) if self.spec.is_headless else ReadyProbe(self.spec)
        self._start_began_at = time.monotonic()
        self._ready_at: float | None = None
        self._halted_at: float | None = None

    def start(self) -> None:
        """Start the process, leave a record of it and answer probes."""
        remove_ownerless_files()
        try:
            self._supervisor.start()
            if self._record is None:
                self._register()
            else:
                self._change_record(
                    **self._process_fields(), state=ServerState.RESTARTING, detail=None
                )
        except BaseException:
            if self._supervisor.has_begun:
                self._supervisor.hurry()
                self._supervisor.stop()
            self.leave()
            raise

    def start_again(self) -> None:
        """After `clear_away`: another start, with a log of its own."""
        self.num_restarts += 1
        self._stall = self._lasting_stall = None
        self._prepare_start(new_log_path(self.log.path.parent, self.name))
        self.start()

    def _register(self) -> None:
        record = self._new_record()
        self._registry.add(record)
        self._record = record  # from here on it is ours to remove
        if self.care.status_port is not None:
            self._endpoint.open_port(self.care.status_port, self.care.status_host)
        port = self.care.status_port
        url = None if port is None else f"http://{url_host(self.care.status_host)}:{port}"
        self._change_record(status_socket=self._open_socket(), status_url=url)

    def _open_socket(self) -> str | None:
        opened: list[Path] = []
        place = self._registry.socket_path(self.name)
        self._write(lambda: opened.append(self._endpoint.open_socket(place)))
        return str(opened[0]) if opened else None

    def _new_record(self) -> ServerRecord:
        return ServerRecord(
            name=self.name,
            pid=self._supervisor.pid,
            create_time=self._supervisor.create_time,
            supervisor_pid=os.getpid(),
            supervisor_create_time=psutil.Process().create_time(),
            identity=self._supervisor.identity,
            supervisor_identity=process_identity(os.getpid()),
            url=self.spec.url,
            model=self.spec.model,
            engine=self.spec.engine,
            log_path=str(self.log.path),
            stop_s=self.spec.shutdown_timeout_s,
            command=without_api_key(self.spec.argv),
            serve_args=self.care.serve_args,
            folder=_working_folder(),
            needs_key=bool(self.spec.secrets),
            key_file=None if self.care.key_file is None else str(self.care.key_file),
        )

    def _process_fields(self) -> dict[str, object]:
        return {
            "pid": self._supervisor.pid,
            "create_time": self._supervisor.create_time,
            "identity": self._supervisor.identity,
            "log_path": str(self.log.path),
            "num_restarts": self.num_restarts,
        }

    def _change_record(self, **values: object) -> None:
        with self._record_lock:
            if self._record is None:
                return
            changed = dataclasses.replace(self._record, **values)  # type: ignore[arg-type]
            if changed != self._record or self._is_record_old:
                self._record = changed
                self._is_record_old = not self._write(lambda: self._registry.replace(changed))

    def _write(self, action: Callable[[], object]) -> bool:
        """Whether it could be done: a disk that is full or gone is no reason to end a server."""
        try:
            action()
        except (OSError, StokerError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self.note(f"the record of {self.name} is not kept up: {why}")
            return False
        return True

    def note(self, text: str) -> None:
        """Have something said to the user, once."""
        self._notes.setdefault(text, False)

    def tell(self, text: str) -> None:
        """Have something said to the user that is no warning, each time."""
        self._told.append(text)

    def take_told(self) -> tuple[str, ...]:
        """What `tell` was given since the last call."""
        told, self._told = self._told, []
        return tuple(told)

    def take_notes(self) -> tuple[str, ...]:
        """What is to be said now."""
        fresh = tuple(text for text, is_told in list(self._notes.items()) if not is_told)
        self._notes.update(dict.fromkeys(fresh, True))
        return fresh

    def go_to_background(self) -> None:
        """Nobody looks on any more: what goes wrong from now on stays in the registry."""
        self.care = dataclasses.replace(self.care, is_background=True)

    def note_state(self, state: ServerState, detail: str | None = None) -> None:
        """Write into the record what `stoker ps` shows."""
        self._change_record(state=state, detail=detail, **self._log_fields())

    def begin_service(self) -> None:
        """It is ready: from now on its counters are watched."""
        self._ready_at = time.monotonic()
        if self.spec.uds is not None:  # private from its first moment; now as our own engine has it
            with contextlib.suppress(OSError):
                os.chmod(self.spec.uds, 0o600)
        self._supervisor.note_files()  # it will not use others before long
        self.note_state(ServerState.READY)
        if not self.spec.is_headless:  # whether requests get on is seen on node 0
            self._begin_watch()
        if self.care.endpoint_file is not None:
            self._publish(self.care.endpoint_file)

    def _publish(self, path: Path) -> None:
        """Clients on other machines find the server by this file, from its first token on."""
        endpoint = EndpointFile(
            name=self.name,
            url=self.spec.outside_url or self.spec.url,
            model=self.spec.model,
            engine=self.spec.engine,
            key_file=None if self.care.key_file is None else str(self.care.key_file),
        )
        try:
            endpoint.write(path)
        except OSError as error:
            self.note(f"the endpoint file {path} cannot be written: {error.strerror}")

    def _begin_watch(self) -> None:
        self._activity = ActivityWatch(
            self.spec.url,
            self.care.stall_s,
            processes=self._supervisor.processes,
            probe=self._idle_probe(),
            on_change=self._note_activity,
        )
        self._activity.start()

    def _idle_probe(self) -> IdleProbe | None:
        if self.care.idle_probe_s is None:
            return None
        return IdleProbe(
            lambda timeout_s: answers_one_token(self.spec, timeout_s),
            every_s=self.care.idle_probe_s,
            patience_s=self.care.stall_s,
        )

    def _end_watch(self) -> None:
        activity, self._activity = self._activity, None
        if activity is not None:
            activity.stop()

    def take_stall(self) -> str | None:
        """Why it counts as stalled, once for each stall."""
        reason, self._stall = self._stall, None
        return reason

    def stall_to_end(self) -> str | None:
        """Why this start should be ended and followed by another, where the policy has it so."""
        return self._lasting_stall if self.care.restart.is_on else None

    def halt(self) -> str | None:
        """Why a node without an API server has to be ended, though it runs: node 0 does not wait
        for a process that is stopped, and nothing else here would.
        """
        if not (self.spec.is_headless and self.is_alive() and is_stopped(self._supervisor.pid)):
            self._halted_at = None
            return None
        self._halted_at = self._halted_at or time.monotonic()
        is_long = time.monotonic() - self._halted_at >= _HALT_S
        return "its process is stopped by a signal or a debugger" if is_long else None

    def is_unused(self) -> bool:
        """Whether no client has asked it for as long as --exit-when-idle allows."""
        limit_s, activity = self.care.exit_when_idle_s, self._activity
        if limit_s is None or activity is None:
            return False
        idle_s = activity.client_idle_s
        if idle_s is None and self.served_s > _TELLS_BY_S:
            self.note("it does not show its queue, so that --exit-when-idle does nothing")
        return idle_s is not None and idle_s >= limit_s

    @property
    def moved_at(self) -> float | None:
        """When a start or a busy engine last moved, or an idle one answered; None if stalled."""
        activity = self._activity
        if activity is not None:
            return activity.moved_at
        return time.monotonic() - self.log.progress.age_s

    def read_care_again(self) -> None:
        """Take what the settings say now; what cannot be used is said, and the old goes on."""
        if self.care.read_again is None:
            return
        try:
            fresh = self.care.read_again()
        except StokerError as error:
            self.note(f"the settings are as before: {error}")
            return
        if fresh.engine_words != self.care.engine_words:
            self.note("flags of the engine count from its next start: restart the service")
        self.care = dataclasses.replace(
            self.care, **{name: getattr(fresh, name) for name in _TAKEN_WHILE_RUNNING}
        )
        if self._activity is not None:
            self._end_watch()
            self._begin_watch()

    def _note_activity(self, verdict: Verdict) -> None:
        self._stall = verdict.reason
        self._lasting_stall = verdict.reason if verdict.is_lasting else None
        self.note_state(verdict.state, verdict.reason)

    def wait_until_ready(
        self, timeout_s: float, is_stop_requested: Callable[[], bool], on_tick: Callable[[], None]
    ) -> StartOutcome:
        """Wait for the first token; `on_tick` is called several times a second meanwhile."""
        state = ServerState.RESTARTING if self.num_restarts else ServerState.STARTING

        def tick() -> None:
            if self.watch():
                self.note_state(state, self.log.running_phase())
            on_tick()

        return wait_until_ready(
            is_ready=self._probe.is_ready,
            is_alive=self.is_alive,
            is_stop_requested=is_stop_requested,
            timeout_s=timeout_s,
            still_s=lambda: self.log.progress.age_s,
            on_tick=tick,
        )

    def status(self) -> SupervisorStatus:
        """What the supervisor's own endpoint tells; called by its threads."""
        record, activity = self._record, self._activity
        log, supervisor = self.log, self._supervisor
        is_started = self._ready_at is not None
        moved = activity.still_s if activity is not None else log.progress.age_s
        return SupervisorStatus(
            name=self.name,
            engine=self.spec.engine,
            model=self.spec.model,
            state=ServerState.STARTING if record is None else record.state,
            detail=None if record is None else record.detail,
            phase=None if is_started else log.running_phase(),
            is_started=is_started,
            is_process_alive=supervisor.has_begun and supervisor.is_alive(),
            num_restarts=self.num_restarts,
            uptime_s=time.monotonic() - self._began_at,
            progress_age_s=moved,
            log_lost_bytes=log.lost_bytes,
            engine_version=log.report().facts.engine_version,
        )

    def is_alive(self) -> bool:
        """True while the server's first process runs."""
        return self._supervisor.is_alive()

    @property
    def exit_code(self) -> int | None:
        """Exit status of the first process, None while it runs."""
        return self._supervisor.exit_code

    @property
    def served_s(self) -> float:
        """For how long this start has been ready; 0 if it never was."""
        return 0.0 if self._ready_at is None else time.monotonic() - self._ready_at

    def elapsed_s(self) -> float:
        return time.monotonic() - self._start_began_at

    def watch(self) -> bool:
        """Note new processes of the tree, at most once a second; True when it was time."""
        is_time = self._supervisor.watch()
        if is_time:
            self._change_record(**self._log_fields())
        return is_time

    def _log_fields(self) -> dict[str, object]:
        return {"log_lost_bytes": self.log.lost_bytes, "log_error": self.log.write_error}

    def hurry(self) -> None:
        """Make `stop` skip its waiting."""
        self._supervisor.hurry()

    def clear_away(self) -> StopReport:
        """End every process of this start; record and endpoint stay for the next one."""
        self._end_watch()
        report = self._supervisor.stop()
        remove_ownerless_files()
        return report

    def stop(self) -> StopReport:
        """End every process of the server and forget its record."""
        self._end_watch()  # or it would write its own state over this one
        self.note_state(ServerState.DRAINING)
        report = self.clear_away()
        self.leave()
        return report

    def leave(self, failure: str | None = None) -> None:
        """No other start follows. Only the failure of a background server stays in the registry."""
        self._endpoint.close()
        if (path := self.care.endpoint_file) is not None:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        if self._record is None:
            return
        if failure is None or not self.care.is_background:
            self._write(lambda: self._registry.remove(self.name))
        else:
            self._change_record(
                state=ServerState.FAILED, detail=failure, status_socket=None, status_url=None
            )


def _working_folder() -> str:
    """Empty where it was deleted: `stoker restart` then stays where it is called."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return ""
