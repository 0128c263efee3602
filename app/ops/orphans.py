"""Engines of this user that nobody looks after: their supervisor or server is gone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from app.doctor.processes import engine_kind, is_engine_child
from app.ops.process_tree import ProcessTree
from app.ops.stopping import end_processes
from app.ops.supervisor import StopTimes

_ADOPTERS = ("systemd", "init", "launchd", "tini", "dumb-init", "docker-init", "catatonit")


@dataclass(frozen=True, slots=True)
class OrphanEngine:
    """One engine process whose parent is gone."""

    pid: int
    create_time: float
    engine: str
    program: str


def find_orphans() -> tuple[OrphanEngine, ...]:
    """Engine processes of this user, adopted by the system, that no service manager started."""
    return tuple(_orphans())


def end_orphan(orphan: OrphanEngine, times: StopTimes | None = None) -> tuple[int, ...]:
    """End it with its children; pids of what survived even SIGKILL."""
    with contextlib.suppress(psutil.NoSuchProcess):
        if psutil.Process(orphan.pid).create_time() != orphan.create_time:
            return ()  # the pid belongs to somebody else by now
    tree = ProcessTree(orphan.pid)
    tree.refresh()
    end_processes(tree, times or StopTimes())
    return tuple(process.pid for process in tree.alive())


def _orphans() -> Iterator[OrphanEngine]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            kind = _kind(words)
            if kind is None or process.uids().real != os.getuid():
                continue
            if _is_adopted(process) and not _is_service(process.pid):
                title = words[0] if words[0].startswith("VLLM::") else process.name()
                yield OrphanEngine(process.pid, process.create_time(), kind, title)


def _kind(words: list[str]) -> str | None:
    kind = engine_kind(words)
    if kind == "stoker" and not ("serve" in words[1:4] or is_engine_child(words)):
        return None  # a conversion of a model, say
    return kind


def _is_adopted(process: psutil.Process) -> bool:
    parent = process.parent()
    if parent is None:
        return process.pid != 1  # a container's first process may well be a server
    if engine_kind(parent.cmdline()) is not None:
        return False
    return parent.pid == 1 or parent.name() in _ADOPTERS


def _is_service(pid: int) -> bool:
    """Started by systemd as a unit: that is its supervisor."""
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8")
    except OSError:
        return False
    last = groups.strip().rpartition("/")[2]
    return last.endswith(".service") and not last.startswith("user@")
