"""What `stoker ps` and `stoker status` say of a server: its record, checked against the machine."""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import dataclass

from app.errors import ExitCode
from app.registry.server_registry import ServerRecord
from app.registry.states import READY_STATES, RECORDED_STATES, ServerState
from engine.machine.ports import answers_http, uds_answers_http
from engine.machine.processes import is_stopped

_ANSWER_S = 5.0

# The keys of a server's document.
_KEYS = (
    "name",
    "state",
    "detail",
    "engine",
    "model",
    "url",
    "port",
    "pid",
    "start_time",
    "supervisor_pid",
    "supervisor_start_time",
    "up_s",
    "restarts",
    "status_socket",
    "status_url",
    "log_path",
    "log_lost_bytes",
    "log_error",
    "command",
    "serve_args",
    "folder",
)


@dataclass(frozen=True, slots=True)
class SeenState:
    """`name` is the word of a ServerState, or that of a later version's record."""

    name: str
    detail: str | None

    @property
    def exit_code(self) -> ExitCode:
        """0 for a server that answers requests."""
        return next((one.exit_code for one in ServerState if one == self.name), ExitCode.NO)


def server_state(record: ServerRecord) -> SeenState:
    if record.state == ServerState.FAILED:
        return SeenState(ServerState.FAILED, record.detail)
    if not record.is_running():
        if record.state == ServerState.BACKING_OFF and record.is_supervised():
            return SeenState(ServerState.BACKING_OFF, record.detail)
        return SeenState(ServerState.DEAD, "its process is gone")
    if not record.is_supervised():
        return SeenState(ServerState.ORPHANED, "its stoker is gone; nobody watches it")
    for pid, who in ((record.pid, "its process"), (record.supervisor_pid, "its stoker")):
        if is_stopped(pid):
            wakes = f"`kill -CONT {pid}` lets it go on"
            return SeenState(
                ServerState.STALLED, f"{who} (pid {pid}) was stopped by a signal; {wakes}"
            )
    return SeenState(record.state, record.detail)


def examined_state(record: ServerRecord) -> SeenState:
    """The state now, by a question to its supervisor and, where it says it serves, to the server.

    The record may be old (a full disk), and a server that answers the connections it has may take
    no other one.
    """
    state = server_state(record)
    is_as_recorded = state == SeenState(record.state, record.detail)
    if not is_as_recorded or state.name in (ServerState.FAILED, ServerState.BACKING_OFF):
        return state
    if record.status_socket is not None:
        told = _ask_supervisor(record.status_socket)
        if told is None:
            pid = record.supervisor_pid
            return SeenState(state.name, f"its stoker (pid {pid}) gives no answer")
        state = told if told.name in RECORDED_STATES and told.name != state.name else state
    if state.name in READY_STATES and not _answers(record):
        return SeenState(
            ServerState.STALLED, f"no answer to a new connection within {_ANSWER_S:g} s"
        )
    return state


def _ask_supervisor(path: str) -> SeenState | None:
    """What its own /readyz says, as `state: detail`."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWER_S)
            connection.connect(path)
            connection.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
            with connection.makefile("rb") as answer:
                body = answer.read().rpartition(b"\r\n\r\n")[2].decode(errors="replace")
    except OSError:
        return None
    name, _, detail = body.strip().partition(": ")
    return SeenState(name, detail or None) if name else None


def _answers(record: ServerRecord) -> bool:
    if record.uds is not None:
        return uds_answers_http(record.uds, _ANSWER_S)
    return answers_http(*record.address, _ANSWER_S)


def describe(record: ServerRecord, state: SeenState | None = None) -> dict[str, object]:
    """The record and the state, by default `server_state`, as a document."""
    state = state or server_state(record)
    is_up = record.is_running()
    return {
        "name": record.name,
        "state": state.name,
        "detail": state.detail,
        "engine": record.engine,
        "model": record.model,
        "url": record.url,
        "port": record.port,
        "pid": record.pid if is_up else None,
        "start_time": record.create_time,
        "supervisor_pid": record.supervisor_pid if record.is_supervised() else None,
        "supervisor_start_time": record.supervisor_create_time,
        "up_s": round(time.time() - record.create_time, 1) if is_up else None,
        "restarts": record.num_restarts,
        "status_socket": record.status_socket,
        "status_url": record.status_url,
        "log_path": record.log_path,
        "log_lost_bytes": record.log_lost_bytes,
        "log_error": record.log_error,
        "command": list(record.command),
        "serve_args": list(record.serve_args),
        "folder": record.folder,
    }


def describe_address(url: str, api_key: str | None) -> tuple[SeenState, dict[str, object]]:
    """The same keys for a server without a record: what it says itself, the rest None; unreachable
    where nothing answers.
    """
    from app.client.errors import ClientError
    from app.client.server import HealthStatus, check_health, first_model, scrape_metrics
    from app.targets.server_errors import client_errors

    health, model = check_health(url, api_key=api_key), None
    try:
        model = first_model(url, api_key=api_key)
    except ClientError as error:
        if health is HealthStatus.UNREACHABLE:
            with client_errors(api_key):
                raise error
    else:
        health = HealthStatus.READY  # some servers have no /health
    state = SeenState(ServerState(health.value), None)
    if health is HealthStatus.READY:
        with contextlib.suppress(ClientError):  # it tells nothing, or has no metrics
            if scrape_metrics(url, api_key=api_key, timeout_s=_ANSWER_S).sleep_level:
                state = SeenState(ServerState.ASLEEP, None)
    return state, {**dict.fromkeys(_KEYS), "state": state.name, "model": model, "url": url}
