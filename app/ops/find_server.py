"""Which server a person means by a name, a pid or an address, and the key for it."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from app.errors import ExitCode, StokerError
from app.ops.server_registry import ServerRecord, ServerRegistry


def open_registry() -> ServerRegistry:
    """The records of this user on this machine."""
    from app.paths import SERVERS, runtime_dir

    return ServerRegistry(runtime_dir() / SERVERS)


def managed_url(word: str) -> str | None:
    """The URL of the server that runs under this name or pid; None where none does."""
    if not word or not set(word).isdisjoint("/: \n"):
        return None
    return next(
        (
            record.url
            for record in open_registry().running()
            if word in (record.name, str(record.pid), str(record.supervisor_pid))
        ),
        None,
    )


def base_url_of(word: str | None) -> str:
    """The base URL of a server of ours or of an address; without a word that of STOKER_URL."""
    from app.client.transport import DEFAULT_URL, normalise_base_url
    from app.server_errors import client_errors

    address = word and (managed_url(word) or word)
    with client_errors():
        return normalise_base_url(address or os.environ.get("STOKER_URL") or DEFAULT_URL)


def api_key_from(key_file: Path | None) -> str | None:
    """The API key of a file or the environment; StokerError for a file that holds none."""
    from app.client.credentials import find_api_key
    from app.server_errors import client_errors

    with client_errors():
        return find_api_key(key_file, os.environ)


def find_server(word: str | None, records: tuple[ServerRecord, ...]) -> ServerRecord:
    """The record that `word` names; without a word, the only one there is."""
    if word is None and len(records) == 1:
        return records[0]
    for record in records:
        if word == record.name or word in (str(record.pid), str(record.supervisor_pid)):
            return record
    if not records:
        raise StokerError(
            "no server runs now" if word is None else f"no server is called {word}: none runs now",
            hint="`stoker serve` starts one",
            exit_code=ExitCode.UNREACHABLE,
        )
    names = [record.name for record in records]
    if word is None:
        raise StokerError(
            "several servers run; name one",
            hint=f"servers: {', '.join(names)}",
            exit_code=ExitCode.USAGE,
        )
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"servers: {', '.join(names)}"
    raise StokerError(f"no server is called {word}", hint=hint, exit_code=ExitCode.UNREACHABLE)
