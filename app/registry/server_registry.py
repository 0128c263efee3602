"""Records of the servers that run now, one small JSON file each; no secret is in them.

A record is valid while the server's or its supervisor's process (pid and start time) lives; others
are deleted when seen. Only a background server's failure stays, since nobody saw it happen.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from app.errors import StokerError, UsageError
from app.paths import file_name, private_folder
from app.registry.json_records import known_fields, read_own_file
from app.registry.states import ServerState
from engine.machine.ports import is_port_free, is_uds_served
from engine.machine.private_files import write_beside
from engine.machine.processes import is_same_process


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRecord:
    """One server. An identity tells a process from a later one with its pid.

    Create times are seconds since the epoch, to be shown: they move when the clock is set.

    `state` is one of RECORDED_STATES; `detail` says more of it.
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
    identity: str = ""  # of the process, as `process_identity` tells it
    supervisor_identity: str = ""
    state: str = ServerState.STARTING
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
    key_file: str | None = None  # where its key is, for clients of this user
    schema_version: int = 1

    @property
    def uds(self) -> str | None:
        """The socket file that it listens on; None for host and port."""
        return self.url.removeprefix("unix:") if self.url.startswith("unix:") else None

    @property
    def port(self) -> int | None:
        """The port that it listens on; None for a socket file."""
        return self.address[1] if self.uds is None else None

    @property
    def place(self) -> str:
        """Where it listens, in words."""
        return f"port {self.port}" if self.uds is None else f"socket {self.uds}"

    def is_place_free(self) -> bool:
        """Whether nobody listens where it listened."""
        return is_port_free(*self.address) if self.uds is None else not is_uds_served(self.uds)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to connect to."""
        parts = urlsplit(self.url)
        return parts.hostname or "127.0.0.1", parts.port or 80

    def is_supervised(self) -> bool:
        """True while the `stoker` that started the server lives."""
        return is_same_process(self.supervisor_pid, self.supervisor_identity)

    def is_running(self) -> bool:
        """True while the server's first process lives."""
        return is_same_process(self.pid, self.identity)


class ServerRegistry:
    """The records below one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, record: ServerRecord) -> None:
        """Write the record of a new server; refused while another one with its name runs."""
        if record.name in {other.name for other in self.running()}:
            raise _name_taken(record.name)
        self.remove(record.name)  # what a failed one left
        try:
            fresh = self._write(record)
        except OSError as error:
            raise UsageError(
                f"the record of {record.name} cannot be written into {self._folder}: "
                f"{error.strerror}",
                hint="free some space, or choose another place with STOKER_STATE_DIR",
            ) from error
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
        private_folder(self._folder)
        return write_beside(self._path(record.name), json.dumps(asdict(record)).encode())

    def remove(self, name: str) -> None:
        self._delete(self._path(name))

    def socket_path(self, name: str) -> Path:
        """Where the status socket of a server lies; it goes with the record."""
        return self._path(name).with_suffix(".sock")

    def _delete(self, record: Path) -> None:
        record.unlink(missing_ok=True)
        record.with_suffix(".sock").unlink(missing_ok=True)

    def running(self) -> tuple[ServerRecord, ...]:
        """Records of servers that live, by name; stale ones are deleted."""
        return tuple(record for record in self.all() if record.state != ServerState.FAILED)

    def all(self) -> tuple[ServerRecord, ...]:
        """Running servers and background servers that failed, by name; stale ones are deleted."""
        found = []
        for path in sorted(self._folder.glob("*.json")):
            record = _read(path)
            if record is not None and (
                record.state == ServerState.FAILED or record.is_running() or record.is_supervised()
            ):
                found.append(record)
            else:
                with contextlib.suppress(OSError):  # a folder, or the disk is read-only
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


def _name_taken(name: str) -> StokerError:
    return UsageError(
        f"a server called {name} is already running",
        hint=f"give another --name, or end it first: stoker stop {name}",
    )


def _read(path: Path) -> ServerRecord | None:
    """None for what is damaged; keys of a later version are passed over."""
    try:
        document = json.loads(read_own_file(path))
        record = ServerRecord(**known_fields(ServerRecord, document))
        return record if record.address else None  # ValueError for a port that is no number
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None
