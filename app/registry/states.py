"""The states of a server and what each means: for requests, for probes, for exit codes."""

from __future__ import annotations

import enum

from app.errors import ExitCode


class ServerState(str, enum.Enum):
    """A word of `stoker ps`, and equal to it."""

    STARTING = "starting"
    READY = "ready"  # its counters say no more
    IDLE = "idle"
    BUSY = "busy"
    ASLEEP = "asleep"  # somebody put it to sleep: it answers nothing until it is woken
    STALLED = "stalled"
    DRAINING = "draining"
    BACKING_OFF = "backing off"  # no process runs
    RESTARTING = "restarting"
    FAILED = "failed"
    DEAD = "dead"  # this one and the next are in no record: they are seen from outside
    ORPHANED = "orphaned"

    __str__ = str.__str__

    @property
    def serves(self) -> bool:
        return self in READY_STATES

    @property
    def is_well(self) -> bool:
        """Whoever restarts what fails should leave it alone."""
        return self not in (ServerState.STALLED, ServerState.FAILED, ServerState.DEAD)

    @property
    def exit_code(self) -> ExitCode:
        """What `stoker status` ends with."""
        if self is ServerState.STALLED:
            return ExitCode.ENGINE_STALLED
        if self.serves:
            return ExitCode.OK
        return ExitCode.NO if self.is_well else ExitCode.ENGINE_DIED


READY_STATES = (ServerState.READY, ServerState.IDLE, ServerState.BUSY)
SERVICE_STATES = (
    *READY_STATES,
    ServerState.ASLEEP,
    ServerState.STALLED,
)  # the start is over, the end has not begun
RECORDED_STATES = tuple(ServerState)[:-2]
