"""Ends engines that nobody looks after; what counts as one, `engine.machine.orphans` says."""

from __future__ import annotations

from app.supervise.process_tree import ProcessTree
from app.supervise.stopping import end_processes
from app.supervise.supervisor import StopTimes
from engine.machine.orphans import OrphanEngine
from engine.machine.processes import is_same_process


def end_orphan(orphan: OrphanEngine, times: StopTimes | None = None) -> tuple[int, ...]:
    """End it with its children; pids of what survived even SIGKILL."""
    if not is_same_process(orphan.pid, orphan.identity):
        return ()  # the pid belongs to somebody else by now
    tree = ProcessTree(orphan.pid)
    tree.refresh()
    end_processes(tree, times or StopTimes())
    return tuple(process.pid for process in tree.alive())
