"""Which servers a person means by the words after `stoker top`, and how each is watched.

Names of ours, addresses, or all that a Prometheus server scrapes.
"""

from __future__ import annotations

import dataclasses
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from app.errors import StokerError

if TYPE_CHECKING:
    from app.client.watched import WatchedServer
    from app.ops.server_registry import ServerRecord

_ADDRESS = re.compile(r"[:/.\[]|^\d+$|^localhost$")
_STATES_AGE_S = 1.0
_LOGIN_VARIABLE = "STOKER_PROMETHEUS_LOGIN"


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


def watch_targets(
    targets: Sequence[WatchTarget], api_key: str | None, interval_s: float
) -> list[WatchedServer]:
    """How each of them is sampled; of ours with what its supervisor says of it."""
    from app.client.watched import watch_url

    states = SupervisedStates()
    found = []
    for target in targets:
        one = watch_url(target.url, name=target.name, api_key=api_key, interval_s=interval_s)
        if target.is_managed:
            state = partial(states.of, target.name)
            one = dataclasses.replace(one, state=state, log_path=target.log_path)
        found.append(one)
    return found


def watch_prometheus(
    url: str, selector: str, login_file: Path | None, interval_s: float
) -> list[WatchedServer]:
    """Every engine that a Prometheus server scrapes."""
    import asyncio

    from app.client.credentials import read_key_file
    from app.client.prometheus import PrometheusServer
    from app.server_errors import client_errors

    key = f"token or USER:PASSWORD into {_LOGIN_VARIABLE}"
    absent = "give the address of a Prometheus server: --prometheus http://HOST:9090"
    with client_errors():
        login = read_key_file(login_file) if login_file else os.environ.get(_LOGIN_VARIABLE)
    with client_errors(login, absent=absent, key=key):
        server = PrometheusServer(url, selector=selector, login=login)
        instances = asyncio.run(server.instances())
    if not instances:
        asked = f" with {selector}" if selector else ""
        raise StokerError(
            f"{server.url} scrapes no inference server{asked}",
            hint=f"its targets: {server.url}/targets",
        )
    return [server.watch(instance, interval_s) for instance in instances]


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
