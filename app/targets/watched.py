"""How the servers after `stoker top` are watched, or all that a Prometheus server scrapes."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from app.errors import StokerError

if TYPE_CHECKING:
    from app.client.watch.watched import WatchedServer
    from app.targets.servers import ServerTarget

_STATES_AGE_S = 1.0
_LOGIN_VARIABLE = "STOKER_PROMETHEUS_LOGIN"


def watch_targets(
    targets: Sequence[ServerTarget], api_key: str | None, interval_s: float
) -> list[WatchedServer]:
    """How each of them is sampled; of ours with what its supervisor says of it."""
    from app.client.watch.watched import watch_url

    states = SupervisedStates()
    found = []
    for target in targets:
        key = api_key or target.api_key()
        one = watch_url(target.url, name=target.name, api_key=key, interval_s=interval_s)
        if target.record is not None:
            state = partial(states.of, target.name)
            cause = partial(states.cause_of, target.name)
            one = dataclasses.replace(one, state=state, cause=cause, log_path=target.log_path)
        found.append(one)
    return found


def watch_prometheus(
    url: str, selector: str, login_file: Path | None, interval_s: float
) -> list[WatchedServer]:
    """Every engine that a Prometheus server scrapes."""
    import asyncio

    from app.client.credentials import read_key_file
    from app.client.watch.prometheus import PrometheusServer
    from app.targets.server_errors import client_errors

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


class SupervisedStates:
    """What the supervisors say of their servers, read at most once a second for all of them."""

    def __init__(self) -> None:
        self._read_s = float("-inf")
        self._states: dict[str, str] = {}
        self._details: dict[str, str] = {}

    def of(self, name: str) -> str:
        """starting, ready, ... or failed; "" when no record is left."""
        self._read()
        return self._states.get(name, "")

    def cause_of(self, name: str) -> str:
        """What `stoker ps` says beside the state, in one line; "" where it says nothing."""
        self._read()
        return " ".join(self._details.get(name, "").split())

    def _read(self) -> None:
        from app.registry.server_registry import open_registry

        if time.monotonic() - self._read_s > _STATES_AGE_S:
            records = open_registry().all()
            self._states = {record.name: record.state for record in records}
            self._details = {record.name: record.detail or "" for record in records}
            self._read_s = time.monotonic()
