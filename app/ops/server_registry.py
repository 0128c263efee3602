"""Records of the servers that run now, one small JSON file each; no secret is in them.

A record is valid while the process with its pid and start time lives; others are deleted when seen.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from app.errors import ExitCode, StokerError

_CLOCK_SLACK_S = 1.5  # the boot time, and so every start time, moves a little when the clock is set


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRecord:
    """One running server. `create_time` (epoch seconds) tells it from a later one with its pid."""

    name: str
    pid: int
    create_time: float
    supervisor_pid: int
    url: str
    model: str
    engine: str
    log_path: str
    schema_version: int = 1


class ServerRegistry:
    """The records below one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, record: ServerRecord) -> None:
        """Write the record; readers see it whole or not at all."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._path(record.name)
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(asdict(record), file)
        fresh.replace(path)

    def remove(self, name: str) -> None:
        """Forget a server."""
        self._path(name).unlink(missing_ok=True)

    def running(self) -> tuple[ServerRecord, ...]:
        """Records whose process lives, by name; the others are deleted."""
        alive = []
        for path in sorted(self._folder.glob("*.json")):
            record = _read(path)
            if record is not None and is_same_process(record.pid, record.create_time):
                alive.append(record)
            else:
                path.unlink(missing_ok=True)
        return tuple(alive)

    def free_name(self, wanted: str | None, fallback: str, port: int) -> str:
        """`wanted` if no running server has it; else `fallback`, with the port if it is taken."""
        taken = {record.name for record in self.running()}
        if wanted is not None:
            if wanted in taken:
                raise StokerError(
                    f"a server called {wanted} is already running",
                    hint="give another --name",
                    exit_code=ExitCode.USAGE,
                )
            return wanted
        return fallback if fallback not in taken else f"{fallback}-{port}"

    def _path(self, name: str) -> Path:
        return self._folder / (re.sub(r"[^A-Za-z0-9._-]+", "_", name) + ".json")


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


def _read(path: Path) -> ServerRecord | None:
    try:
        return ServerRecord(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
