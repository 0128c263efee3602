"""The one rule of what is left behind: engine processes that nobody needs and nobody looks after.

An orphan is a process of this user that only works for a server which is gone (EngineCore, a
worker), or one that Stoker started as a server and lost. A server that listens and answers is never
one, whoever started it, and a server that Stoker did not start is its owner's business.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.machine.addresses import url_host
from engine.machine.ports import Listener, answers_http, read_listeners
from engine.machine.processes import (
    SERVER_MARK,
    engine_kind,
    is_adopted,
    is_engine_child,
    is_in_our_namespace,
    is_same_process,
    process_identity,
    role_of,
    supervisor_in,
)

if TYPE_CHECKING:
    import psutil

_ANSWER_S = 2.0


@dataclass(frozen=True, slots=True)
class OrphanEngine:
    """One process that is left, with its children. `identity` tells it from a later one."""

    pid: int
    identity: str
    engine: str  # "unknown" for what a server had started
    program: str
    ports: tuple[int, ...] = ()


def find_orphans() -> tuple[OrphanEngine, ...]:
    """Those of this user on this machine, without the children of others among them."""
    import psutil

    listeners = read_listeners()
    lost = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.uids().real == os.getuid() and _is_lost(process, listeners):
                lost[process.pid] = process
    return tuple(_orphans(lost, listeners))


def _orphans(
    lost: dict[int, psutil.Process], listeners: tuple[Listener, ...]
) -> Iterator[OrphanEngine]:
    import psutil

    for process in lost.values():
        with contextlib.suppress(psutil.Error):
            if process.ppid() in lost or not (identity := process_identity(process.pid)):
                continue
            words = process.cmdline()
            ports = tuple(one.port for one in listeners if one.pid == process.pid)
            yield OrphanEngine(
                process.pid, identity, engine_kind(words) or "unknown", _title(process), ports
            )


def _title(process: psutil.Process) -> str:
    words = process.cmdline()
    if words[0].startswith("VLLM::"):
        return words[0]
    return f"Stoker's {role_of(words) or 'helper'}" if is_engine_child(words) else process.name()


def _is_lost(process: psutil.Process, listeners: tuple[Listener, ...]) -> bool:
    words = process.cmdline()
    if not words or not is_in_our_namespace(process.pid):
        return False
    if is_engine_child(words) and is_adopted(process):
        return True
    mark = process.environ().get(SERVER_MARK)
    if mark is None or not _is_supervisor_gone(process, mark):
        return False
    return not _serves(process, listeners)


def _is_supervisor_gone(process: psutil.Process, mark: str) -> bool:
    supervisor = supervisor_in(mark)
    return is_adopted(process) if supervisor is None else not is_same_process(*supervisor)


def _serves(process: psutil.Process, listeners: tuple[Listener, ...]) -> bool:
    """It, or the server that it works for."""
    family = {process.pid, *(parent.pid for parent in process.parents())}
    return any(
        answers_http(url_host(one.address).strip("[]"), one.port, _ANSWER_S)
        for one in listeners
        if one.pid in family
    )
