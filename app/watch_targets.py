"""Which servers a person means by the words after `stoker top`: names of ours, or addresses."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.errors import StokerError

if TYPE_CHECKING:
    from app.ops.server_registry import ServerRecord

_ADDRESS = re.compile(r"[:/.\[]|^\d+$|^localhost$")
_STATES_AGE_S = 1.0


@dataclass(frozen=True, slots=True)
class WatchTarget:
    """One server; `log_path` only of a server that runs on this machine under our supervision."""

    name: str
    url: str
    log_path: Path | None = None
    is_managed: bool = False


def find_targets(words: Sequence[str], url_of_environment: str | None) -> list[WatchTarget]:
    """The servers that the words name; without words the one of STOKER_URL, or all of ours."""
    from app.client.transport import DEFAULT_URL
    from app.ops.find_server import open_registry

    records = open_registry().running() if words or not url_of_environment else ()
    if words:
        found = [_find(word, records) for word in words]
        return list({target.url: target for target in found}.values())
    if url_of_environment or not records:
        return [_address(url_of_environment or DEFAULT_URL)]
    return [_managed(record) for record in records]


def _find(word: str, records: tuple[ServerRecord, ...]) -> WatchTarget:
    from app.ops.find_server import find_server

    for record in records:
        if word in (record.name, str(record.pid), str(record.supervisor_pid)):
            return _managed(record)
    if _ADDRESS.search(word):
        return _address(word)
    try:
        return _managed(find_server(word, records))
    except StokerError as error:
        hint = f"{error.hint} (an address has a port: {word}:8000)"
        raise StokerError(str(error), hint=hint, exit_code=error.exit_code) from error


def _managed(record: ServerRecord) -> WatchTarget:
    return WatchTarget(record.name, record.url, Path(record.log_path), is_managed=True)


def _address(word: str) -> WatchTarget:
    from app.ops.find_server import base_url_of

    url = base_url_of(word)
    return WatchTarget(url.partition("://")[2], url)


class SupervisedStates:
    """What the supervisors say of their servers, read at most once a second for all of them."""

    def __init__(self) -> None:
        self._read_s = float("-inf")
        self._states: dict[str, str] = {}

    def of(self, name: str) -> str:
        """starting, ready, ... or failed; "" when no record is left."""
        from app.ops.find_server import open_registry

        if time.monotonic() - self._read_s > _STATES_AGE_S:
            self._states = {record.name: record.state for record in open_registry().all()}
            self._read_s = time.monotonic()
        return self._states.get(name, "")
