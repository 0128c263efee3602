"""Stops servers from outside: asks their supervisor, else ends the processes, and proves it.

Also engines that nobody looks after; what counts as one, `engine.machine.orphans` says.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import replace

from app.registry.server_registry import ServerRecord
from app.supervise.ending import StopReport, StopTimes, end_tree, seen_after
from app.supervise.gpu_release import GpuWitness
from app.supervise.ownerless_files import remove_ownerless_files
from app.supervise.process_tree import ProcessTree
from app.supervise.shared_files import SharedFiles
from app.supervise.waiting import wait_until
from engine.machine.orphans import OrphanEngine
from engine.machine.processes import is_same_process

_HURRY_AFTER_S = 0.3  # two equal signals at once would arrive as one
_SPARE_S = 5.0


def stop_server(record: ServerRecord, *, now: bool, times: StopTimes | None = None) -> StopReport:
    """End one server and its supervisor; `now` cuts running requests off."""
    times = times or StopTimes()
    tree, files, gpus = None, SharedFiles(), GpuWitness()
    if record.is_running():
        tree = ProcessTree(record.pid)
        tree.refresh()
        files.note(tree.pids())
    if record.is_supervised():
        _stop_supervisor(record, now, times)
    was_killed = tree is not None and end_tree(tree, times)
    remove_ownerless_files()
    known = seen_after(tree, record.port, record.is_place_free, times)
    supervisor = (record.supervisor_pid,) if record.is_supervised() else ()
    pids = tree.pids() if tree is not None else frozenset()
    gpu_left = gpus.wait_for_release(pids, times.gpu_s)
    return replace(
        known,
        leftovers=(*known.leftovers, *supervisor),
        was_killed=was_killed,
        files_left=files.remove(),
        gpu_left=gpu_left,
    )


def _stop_supervisor(record: ServerRecord, now: bool, times: StopTimes) -> None:
    _signal(record, signal.SIGTERM)
    _signal(record, signal.SIGCONT)  # one that was suspended with Ctrl-Z would not hear
    if now and not wait_until(lambda: not record.is_supervised(), _HURRY_AFTER_S):
        _signal(record, signal.SIGTERM)
    patience = record.stop_s + times.grace_s + times.group_s + 2 * times.kill_s + _SPARE_S
    if not wait_until(lambda: not record.is_supervised(), patience):
        _signal(record, signal.SIGKILL)
        wait_until(lambda: not record.is_supervised(), times.kill_s)


def _signal(record: ServerRecord, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        if record.is_supervised():
            os.kill(record.supervisor_pid, number)


def end_orphan(orphan: OrphanEngine, times: StopTimes | None = None) -> tuple[int, ...]:
    """End it with its children; pids of what survived even SIGKILL."""
    if not is_same_process(orphan.pid, orphan.identity):
        return ()  # the pid belongs to somebody else by now
    tree = ProcessTree(orphan.pid)
    tree.refresh()
    end_tree(tree, times or StopTimes())
    return tuple(process.pid for process in tree.alive())
