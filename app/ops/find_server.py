"""Which server a person means by a name or a pid."""

from __future__ import annotations

import difflib

from app.errors import ExitCode, StokerError
from app.ops.server_registry import ServerRecord, ServerRegistry


def open_registry() -> ServerRegistry:
    """The records of this user on this machine."""
    from app.paths import runtime_dir

    return ServerRegistry(runtime_dir() / "servers")


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
