"""Records of the servers that run now, one small JSON file each; no secret is in them.

A record is valid while the server's or its supervisor's process (pid and start time) lives; others
are deleted when seen. Only a background server's failure stays, since nobody saw it happen.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from urllib.parse import urlsplit

from app.errors import ExitCode, StokerError
from app.paths import file_name

FAILED = "failed"
STARTING, RESTARTING, BACKING_OFF = "starting", "restarting", "backing off"
NOT_READY_STATES = (STARTING, RESTARTING, BACKING_OFF)
READY_STATES = ("ready", "idle", "busy")
STATES = (STARTING, *READY_STATES, "stalled", "draining", BACKING_OFF, RESTARTING, FAILED)
_CLOCK_SLACK_S = 1.5  # the boot time, and so every start time, moves a little when the clock is set


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRecord:
    """One server. A create time (epoch seconds) tells a process from a later one with its pid.

    `state` is one of STATES; `detail` says more of it. While it is `backing off` no process runs.
    `command` is the server's own, `serve_args` and `folder` what `stoker restart` repeats.
    `status_socket` and `status_url` are the supervisor's own endpoint.
    """

    name: str
    pid: int
    create_time: float
    supervisor_pid: int
    url: str
    model: str
    engine: str
    log_path: str
    supervisor_create_time: float = 0.0
    state: str = STARTING
    detail: str | None = None
    num_restarts: int = 0
    log_lost_bytes: int = 0
    log_error: str | None = None
    status_socket: str | None = None
    status_url: str | None = None
    stop_s: float = 5.0  # what the server may take to finish its requests
    command: tuple[str, ...] = field(default=())
    serve_args: tuple[str, ...] = field(default=())
    folder: str = ""
    needs_key: bool = False
    schema_version: int = 1

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to connect to."""
        parts = urlsplit(self.url)
        return parts.hostname or "127.0.0.1", parts.port or 80

    def is_supervised(self) -> bool:
        """True while the `stoker` that started the server lives."""
        return is_same_process(self.supervisor_pid, self.supervisor_create_time)

    def is_running(self) -> bool:
        """True while the server's first process lives."""
        return is_same_process(self.pid, self.create_time)


class ServerRegistry:
    """The records below one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, record: ServerRecord) -> None:
        """Write the record of a new server; refused while another one with its name runs."""
        if record.name in {other.name for other in self.running()}:
            raise _name_taken(record.name)
        self.remove(record.name)  # what a failed one left
        fresh = self._write(record)
        try:
            os.link(fresh, self._path(record.name))  # unlike a rename, never over another's record
        except FileExistsError:
            raise _name_taken(record.name) from None
        finally:
            fresh.unlink()

    def replace(self, record: ServerRecord) -> None:
        """Write the record anew; readers see it whole or not at all."""
        self._write(record).replace(self._path(record.name))

    def _write(self, record: ServerRecord) -> Path:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self._folder / f".{self._path(record.name).name}.{os.getpid()}"
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(asdict(record), file)
        return fresh

    def remove(self, name: str) -> None:
        """Forget a server."""
        self._delete(self._path(name))

    def socket_path(self, name: str) -> Path:
        """Where the status socket of a server lies; it goes with the record."""
        return self._path(name).with_suffix(".sock")

    def _delete(self, record: Path) -> None:
        record.unlink(missing_ok=True)
        record.with_suffix(".sock").unlink(missing_ok=True)

    def running(self) -> tuple[ServerRecord, ...]:
        """Records of servers that live, by name; stale ones are deleted."""
        return tuple(record for record in self.all() if record.state != FAILED)

    def all(self) -> tuple[ServerRecord, ...]:
        """Running servers and background servers that failed, by name; stale ones are deleted."""
        found = []
        for path in sorted(self._folder.glob("*.json")):
            record = _read(path)
            if record is not None and (
                record.state == FAILED or record.is_running() or record.is_supervised()
            ):
                found.append(record)
            else:
                self._delete(path)
        return tuple(found)

    def free_name(self, wanted: str | None, fallback: str, port: int) -> str:
        """`wanted` if no running server has it; else `fallback`, with the port if it is taken."""
        taken = {record.name for record in self.running()}
        if wanted is not None:
            if wanted in taken:
                raise _name_taken(wanted)
            return wanted
        return fallback if fallback not in taken else f"{fallback}-{port}"

    def _path(self, name: str) -> Path:
        return self._folder / f"{file_name(name)}.json"


def open_registry() -> ServerRegistry:
    """The records of this user on this machine."""
    from app.paths import records_dir

    return ServerRegistry(records_dir())


def is_same_process(pid: int, create_time: float) -> bool:
    """True when `pid` lives, is no zombie, and started at `create_time`."""
    import psutil

    try:
        process = psutil.Process(pid)
        return (
            abs(process.create_time() - create_time) < _CLOCK_SLACK_S
            and process.status() != psutil.STATUS_ZOMBIE
        )
    except psutil.NoSuchProcess:
        return False


def _name_taken(name: str) -> StokerError:
    return StokerError(
        f"a server called {name} is already running",
        hint=f"give another --name, or end it first: stoker stop {name}",
        exit_code=ExitCode.USAGE,
    )


def _read(path: Path) -> ServerRecord | None:
    """None for what is damaged; keys of a later version are passed over."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        known = {entry.name for entry in fields(ServerRecord)}
        values = {key: value for key, value in document.items() if key in known}
        for key in ("command", "serve_args"):
            values[key] = tuple(values.get(key, ()))
        return ServerRecord(**values)
    except (OSError, ValueError, TypeError, AttributeError):
        return None
