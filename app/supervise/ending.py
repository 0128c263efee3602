"""Ends all processes of a server, and says what is known afterwards."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

from app.supervise.gpu_release import GpuHold
from app.supervise.process_tree import ProcessTree
from app.supervise.waiting import wait_until
from engine.machine.ports import describe_holder


@dataclass(frozen=True, slots=True)
class StopTimes:
    """Seconds that each step of stopping may take."""

    grace_s: float = 3.0  # on top of the server's own shutdown timeout
    group_s: float = 3.0  # after SIGTERM to every process
    kill_s: float = 3.0  # after SIGKILL
    gpu_s: float = 5.0  # until the driver has taken the memory back


@dataclass(frozen=True, slots=True)
class StopReport:
    """What is known after stopping. `leftovers` are pids that survived even SIGKILL."""

    num_ended: int
    leftovers: tuple[int, ...]
    is_port_free: bool
    was_killed: bool = False
    port_holder: str = ""  # as in `sshd (pid 12)`, where this user may see it
    files_left: tuple[str, ...] = ()  # shared memory and sockets that could not be removed
    gpu_left: tuple[GpuHold, ...] = ()
    gpu_freed_bytes: int | None = None  # None: no GPU was used, or nobody can tell

    @property
    def is_clean(self) -> bool:
        """Nothing of the server remains."""
        return (
            not self.leftovers and self.is_port_free and not self.files_left and not self.gpu_left
        )

    def remains(self, place: str) -> str:
        """What is left, in words."""
        what = []
        if self.leftovers:
            what.append(f"processes {', '.join(map(str, self.leftovers))} survived SIGKILL")
        if not self.is_port_free:
            holder = f", held by {self.port_holder}" if self.port_holder else ""
            what.append(f"{place} is still in use{holder}")
        if self.files_left:
            what.append(f"{', '.join(self.files_left)} cannot be removed")
        what += map(str, self.gpu_left)
        return " and ".join(what)


def end_tree(
    tree: ProcessTree, times: StopTimes, is_hurried: Callable[[], bool] = lambda: False
) -> bool:
    """SIGTERM to all that is left, then SIGKILL; True when that was needed."""

    def is_over() -> bool:
        tree.refresh()
        return not tree.alive()

    if is_over():
        return False
    tree.signal_all(signal.SIGTERM)
    wait_until(lambda: is_over() or is_hurried(), times.group_s)
    if is_over():
        return False
    tree.signal_all(signal.SIGKILL)
    wait_until(is_over, times.kill_s)
    return True


def seen_after(
    tree: ProcessTree | None,
    port: int | None,
    is_place_free: Callable[[], bool],
    times: StopTimes,
    is_hurried: Callable[[], bool] = lambda: False,
) -> StopReport:
    """Processes, and where it listened, after the end; a closed port may need a moment.

    `port` is None for a socket file, whose holder nobody can name.
    """
    wait_until(lambda: is_place_free() or is_hurried(), times.kill_s)
    is_free = is_place_free()
    leftovers = () if tree is None else tuple(process.pid for process in tree.alive())
    return StopReport(
        num_ended=0 if tree is None else tree.num_seen() - len(leftovers),
        leftovers=leftovers,
        is_port_free=is_free,
        port_holder="" if is_free or port is None else describe_holder(port),
    )
