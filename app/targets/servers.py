"""Which server a person means by a word, for every command that takes one.

A word is a name, a pid, `:port`, `host:port`, a URL, `unix:PATH` or `job:ID`. Without a word it is
the server of STOKER_URL; without that variable the one that runs here; and where none runs and an
address is enough, whatever listens at port 8000. Names of running servers are stronger than
addresses.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.errors import ExitCode, StokerError, UsageError
from app.registry.endpoint_file import is_job, read_endpoint
from app.registry.server_registry import ServerRecord, open_registry
from app.registry.states import ServerState
from app.targets.server_errors import START_ONE, client_errors, running_hint

_URL_VARIABLE = "STOKER_URL"
# host:port, :port, a dotted name or number, localhost: what nobody calls a server or asks a model.
_ADDRESS = re.compile(
    r"(unix:(\S+|[~/.].+)|\S+://\S+|[\w.-]*:\d+(/\S*)?|\[[0-9a-fA-F:]+\](:\d+)?(/\S*)?|localhost(/\S*)?"
    r"|[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+(/\S*)?|\d{2,5})"
)


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """One server: `record` is there for one that `stoker serve` started on this machine."""

    name: str
    url: str
    record: ServerRecord | None = None
    key_file: Path | None = None  # where its key is, as its record or endpoint file says

    @property
    def log_path(self) -> Path | None:
        """Its log, where that is known."""
        return Path(self.record.log_path) if self.record else None

    def api_key(self, key_file: Path | None = None) -> str | None:
        """The key for it: of the file that the user names, the environment, else its own."""
        return api_key_from(key_file) or (api_key_from(self.key_file) if self.key_file else None)

    def key_source(self, key_file: Path | None = None) -> Path | str | None:
        """Where that key is: in a file, or in the variable of this name."""
        from app.client.credentials import find_key_source

        return find_key_source(key_file, os.environ) or self.key_file


def find_target(
    word: str | None, *, failed_too: bool = False, must_run_here: bool = False
) -> ServerTarget:
    """The server that `word` names, by the rule above; StokerError says what can be typed.

    `failed_too` also finds a background server whose failure nobody has looked at. With
    `must_run_here` port 8000 is no answer to a missing word.
    """
    from app.client.transport import DEFAULT_URL

    records = _records(failed_too)
    if word:
        return _named(word, records, is_ours=must_run_here)
    if address := os.environ.get(_URL_VARIABLE):
        return _of_environment(address, records)
    if records:
        return _target(_only(records))
    if must_run_here:
        raise StokerError("no server runs now", hint=START_ONE, exit_code=ExitCode.UNREACHABLE)
    return _address(DEFAULT_URL, records)


def find_targets(words: Sequence[str]) -> list[ServerTarget]:
    """The servers that the words name, each once; without words all that run, where none is set."""
    if words:
        found = [find_target(word) for word in words]
        return list({target.url: target for target in found}.values())
    records = () if os.environ.get(_URL_VARIABLE) else _records(False)
    return [_target(record) for record in records] or [find_target(None)]


def find_record(word: str | None, *, failed_too: bool = False) -> ServerRecord:
    """The record of a server of ours that `word` names; for what only its supervisor can do."""
    target = find_target(word, failed_too=failed_too, must_run_here=True)
    if target.record is None:
        set_by = "" if word else f"{_URL_VARIABLE} says so: "
        raise StokerError(
            f"{set_by}{target.url} is no server that `stoker serve` runs on this machine",
            hint=f"{running_hint(_records(failed_too))}; `stoker top {target.url}` watches it",
            exit_code=ExitCode.UNREACHABLE,
        )
    return target.record


def is_server_word(word: str) -> bool:
    """Whether a word beside a question can only be meant as a server."""
    return (
        is_job(word) or bool(_ADDRESS.fullmatch(word)) or _match(word, _records(True)) is not None
    )


def api_key_from(key_file: Path | None) -> str | None:
    """The API key of a file or the environment; StokerError for a file that holds none."""
    from app.client.credentials import find_api_key

    with client_errors():
        return find_api_key(key_file, os.environ)


def _records(failed_too: bool) -> tuple[ServerRecord, ...]:
    return open_registry().all() if failed_too else open_registry().running()


def _target(record: ServerRecord) -> ServerTarget:
    key_file = Path(record.key_file) if record.key_file else None
    return ServerTarget(record.name, record.url, record, key_file)


def _named(word: str, records: tuple[ServerRecord, ...], *, is_ours: bool = False) -> ServerTarget:
    if (record := _match(word, records)) is not None:
        return _target(record)
    if is_job(word):
        return _of_job(word, records)
    if _ADDRESS.fullmatch(word):
        return _address(word, records)
    names = [record.name for record in records]
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else running_hint(records)
    if not is_ours and re.fullmatch(r"[A-Za-z0-9-]+", word):
        hint += f" (an address has a port: {word}:8000)"
    raise StokerError(f"no server is called {word}", hint=hint, exit_code=ExitCode.UNREACHABLE)


def _of_environment(address: str, records: tuple[ServerRecord, ...]) -> ServerTarget:
    try:
        return _named(address, records)
    except StokerError as error:
        raise StokerError(
            f"{_URL_VARIABLE}: {error}", hint=error.hint, exit_code=error.exit_code
        ) from error


def _match(word: str, records: tuple[ServerRecord, ...]) -> ServerRecord | None:
    """By name, else by pid or port; a number that means two servers is refused."""
    for record in records:
        if word == record.name:
            return record
    found = [
        record
        for record in records
        if word in (str(record.pid), str(record.supervisor_pid), str(record.port))
    ]
    if len(found) > 1:
        raise _several(found, f"{word} means more than one server")
    return found[0] if found else None


def _address(word: str, records: tuple[ServerRecord, ...]) -> ServerTarget:
    from app.client.transport import normalise_base_url

    with client_errors():
        url = normalise_base_url(word)
        for record in records:
            if _place(normalise_base_url(record.url)) == _place(url):
                return _target(record)
    return ServerTarget(url.partition("://")[2] or url, url)


def _of_job(word: str, records: tuple[ServerRecord, ...]) -> ServerTarget:
    endpoint = read_endpoint(word)
    key_file = Path(endpoint.key_file) if endpoint.key_file else None
    target = _address(endpoint.url, records)
    return dataclasses.replace(target, key_file=key_file or target.key_file)


def _place(url: str) -> str:
    return url.replace("//localhost", "//127.0.0.1")


def _only(records: tuple[ServerRecord, ...]) -> ServerRecord:
    """The one that runs; one that failed counts where none runs."""
    running = [record for record in records if record.state != ServerState.FAILED]
    found = running or list(records)
    if len(found) > 1:
        raise _several(found, "several servers run; name one")
    return found[0]


def _several(records: Sequence[ServerRecord], message: str) -> StokerError:
    return UsageError(message, hint=running_hint(records))
