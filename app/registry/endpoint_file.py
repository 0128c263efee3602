"""A small file that tells clients on other machines where a server is, while it serves.

`job:ID` stands for the file of a batch job below the state folder, which a cluster's nodes share.
No key is in it; it names the file that holds one.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from app.errors import ExitCode, StokerError, UsageError
from app.paths import jobs_path, private_folder
from app.registry.json_records import known_fields, read_own_file
from engine.machine.private_files import replace_file

PREFIX = "job:"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointFile:
    """Where a server is. `url` is as other machines reach it."""

    name: str
    url: str
    model: str
    engine: str
    key_file: str | None = None
    schema: str = "stoker.endpoint"
    schema_version: int = 1

    def write(self, path: Path) -> None:
        """Write it whole, readable by this user alone."""
        replace_file(path, json.dumps(asdict(self)).encode())


def is_job(word: str) -> bool:
    """Whether a word names a server by its endpoint file: `job:ID` or `job:/PATH`."""
    return word.startswith(PREFIX) and not word.removeprefix(PREFIX).isspace()


def endpoint_path(word: str) -> Path:
    """The file that `job:ID` or a path means; StokerError for an id that cannot be one."""
    name = word.removeprefix(PREFIX)
    if not word.startswith(PREFIX) or "/" in name:
        return Path(name).expanduser().absolute()
    if not _ID.fullmatch(name):
        raise UsageError(
            f"{word!r} names no job",
            hint="write it like job:12345, or job:/PATH for a file",
        )
    return jobs_path() / f"{name}.json"


def prepared_endpoint_path(word: str) -> Path:
    """The same for who will write it: its folder is there, or StokerError says why not."""
    path = endpoint_path(word)
    if path.parent == jobs_path():
        private_folder(path.parent)
    if not os.access(path.parent, os.W_OK | os.X_OK) or path.is_dir():
        raise UsageError(
            f"the endpoint file {path} cannot be written",
            hint="name a file in a folder of yours: --endpoint-file FILE, or job:ID",
        )
    return path


def read_endpoint(word: str) -> EndpointFile:
    """What the file says; StokerError when there is none, or one that is not this user's."""
    path = endpoint_path(word)
    try:
        document = json.loads(read_own_file(path))
        return EndpointFile(**known_fields(EndpointFile, document))
    except FileNotFoundError:
        raise StokerError(
            f"{word} does not serve: there is no {path}",
            hint="it is written with the first token and removed at the end; `squeue --me` lists "
            "the jobs, and the job's log says how far its start is",
            exit_code=ExitCode.UNREACHABLE,
        ) from None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        why = getattr(error, "strerror", None) or "it is no endpoint file"
        raise StokerError(
            f"{path} cannot be used: {why}", exit_code=ExitCode.UNREACHABLE
        ) from error
