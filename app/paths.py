"""Where Stoker keeps files: cache (models), state (logs), runtime (records of running servers).

XDG folders through platformdirs; `STOKER_CACHE_DIR` and `STOKER_STATE_DIR` override. Every folder
is made private (0700) by who first writes into it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from app.errors import UsageError
from engine.env import STATE_VARIABLE as _STATE
from engine.env import user_cache_dir, user_runtime_dir, user_state_dir
from engine.machine.ownership import Distrust, make_private, own_distrust

_CACHE = "STOKER_CACHE_DIR"
_LOGS = "logs"
# Inside the state folder, and the last one inside that of running servers.
CONVERSATIONS = "conversations.sqlite3"
MEMORY_LEDGER = "memory-ledger.jsonl"
START_TIMES = "start-times.json"
JOBS, KEYS = "jobs", "keys"
SERVERS = "servers"
_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class Place:
    """A folder or file of Stoker's; `variable` moves it. It need not be there."""

    name: str
    path: Path
    variable: str


def all_places() -> tuple[Place, ...]:
    """Everything that Stoker keeps for this user; makes none of it."""
    from app.settings.sources import PROJECT_FILE, USER_FILE_VARIABLE, user_file
    from engine.env import models_dir

    cache, (run, run_variable) = user_cache_dir(), user_runtime_dir()
    state = user_state_dir()
    return (
        Place("settings of this folder", Path(PROJECT_FILE).absolute(), ""),
        Place("settings", user_file(os.environ), USER_FILE_VARIABLE),
        Place("models", models_dir(), _CACHE),
        Place("packed weights", cache / "packed", _CACHE),
        Place("built kernels", cache / "kernels", _CACHE),
        Place("logs", state / _LOGS, _STATE),
        Place("conversations", state / CONVERSATIONS, _STATE),
        Place("memory ledger", state / MEMORY_LEDGER, _STATE),
        Place("start times", state / START_TIMES, _STATE),
        Place("endpoints of jobs", state / JOBS, _STATE),
        Place("keys of servers", state / KEYS, _STATE),
        Place("running servers", run / SERVERS, run_variable),
    )


def file_name(name: str) -> str:
    """`name` as part of a file's name: letters, digits, `.`, `_` and `-`, at most 60 of them.

    What is cut off is told apart by a hash. 60, since a socket's whole path has 107 bytes.
    """
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._") or "server"
    if len(safe) <= _LONGEST_NAME:
        return safe
    import hashlib

    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{safe[: _LONGEST_NAME - len(digest) - 1]}-{digest}"


def state_dir() -> Path:
    """Folder of what this machine's runs left behind: logs."""
    return private_folder(user_state_dir())


def records_dir() -> Path:
    """Folder of the records of running servers; StokerError unless it is this user's alone.

    A record names processes to signal and sockets to speak to. The folder need not be there.
    """
    runtime, variable = user_runtime_dir()
    folder = runtime / SERVERS
    if (fault := own_distrust(folder)) is not None:
        raise UsageError(
            f"records of servers are not read: {fault.path} {fault.reason}",
            hint=f"{_way_in(fault, variable)}, or choose another place with {variable}",
        )
    return folder


def _way_in(fault: Distrust, variable: str) -> str:
    """A folder that changed hands would be lost to the service that keeps its servers there."""
    place = os.environ.get(variable)
    if fault.owner is None or place is None:
        return fault.remedy
    setting = f"{variable}={shlex.quote(os.path.abspath(place))}"
    program = shlex.quote(str(Path(sys.executable).with_name("stoker")))  # sudo has its own PATH
    return f"as that user: sudo -u {shlex.quote(fault.owner)} env {setting} {program} status"


def ledger_path() -> Path:
    """The memory ledger; it need not be there."""
    return user_state_dir() / MEMORY_LEDGER


def jobs_path() -> Path:
    """Where the endpoint files of batch jobs lie; it need not be there."""
    return user_state_dir() / JOBS


def keys_path() -> Path:
    """Where the keys lie that were made for servers; it need not be there."""
    return user_state_dir() / KEYS


def logs_path() -> Path:
    """Where `logs_dir` is, for who only reads; it need not be there."""
    return user_state_dir() / _LOGS


def logs_dir() -> Path:
    """Folder of the raw engine logs."""
    folder = private_folder(logs_path())
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"cannot write into {folder}", hint=f"choose another place with {_STATE}")
    return folder


def private_folder(folder: Path) -> Path:
    """The folder, made if need be, with what is above it: nobody else may look into them.

    StokerError when that is not possible; it names the variable that moves the folder.
    """
    folder = folder.expanduser().absolute()
    try:
        make_private(folder)
        if not folder.is_dir():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))
    except OSError as error:
        raise UsageError(
            f"cannot make the folder {error.filename or folder}: {error.strerror}",
            hint=f"choose another place with {_variable_of(folder)}",
        ) from error
    _close_to_others(user_state_dir(), folder)
    return folder


def _close_to_others(own: Path, folder: Path) -> None:
    """Earlier versions made the state folder readable by all; one that the user chose stays."""
    if os.environ.get(_STATE) or not folder.is_relative_to(own):
        return
    with contextlib.suppress(OSError):
        if own.stat().st_mode & 0o077:
            own.chmod(0o700)


def _variable_of(folder: Path) -> str:
    run, variable = user_runtime_dir()
    if folder.is_relative_to(run):
        return variable
    return _CACHE if folder.is_relative_to(user_cache_dir()) else _STATE
