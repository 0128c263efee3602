"""What one picture says of the server as a whole: reached, starting, busy. Knows no widget."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.client import formatting
from app.client.errors import ClientError, ServerLoading
from tui.state.engine_state import EngineActivity
from tui.state.history import Snapshot

if TYPE_CHECKING:
    from tui.state.start_progress import StartProgress

QUIET_S = 5.0
"""Requests without any progress for so long are worth a word; only the engine view sees steps."""


class Connection(enum.Enum):
    """What the header says about the server; the value is the text, sign first."""

    CONNECTING = "○ connecting"
    LIVE = "● live"
    STARTING = "○ starting"
    PAUSED = "▮▮ paused"
    REPLAY = "▸ replay"
    DISCONNECTED = "✖ disconnected, retrying"


@dataclass(frozen=True, slots=True)
class ServerView:
    """The picture, the newest scrape's error if it failed, and the start as its log tells it."""

    shown: Snapshot | None
    error: ClientError | None
    start: StartProgress | None

    @property
    def is_starting(self) -> bool:
        """By the log, by a sample without numbers of our engine, or by llama-server's answer."""
        if self.shown is not None and self.shown.sample.running is not None:
            return False
        if self.start is not None and self.start.is_starting:
            return True
        if self.error is not None:
            return isinstance(self.error, ServerLoading)
        return self.shown is not None and self.shown.sample.engine == "stoker"

    def activity(self, engine: EngineActivity | None) -> str:
        """Phase of the start, draining, asleep, busy, idle, stalled; "" if the server tells none.

        `engine` is what its own documents say, which know more than its metrics.
        """
        if self.is_starting:
            return self.start.phase if self.start else ""
        if self.start is not None and self.start.is_draining:
            return "draining"
        if self.shown is not None and (level := self.shown.sample.sleep_level):
            return f"asleep, level {level}"
        if engine is not None:
            return engine.word
        if self.shown is None or self.shown.sample.running is None:
            return ""
        if not (self.shown.sample.running or self.shown.sample.waiting):
            return "idle"
        # llama-server counts a request's tokens when the request ends.
        counts_late = self.shown.sample.engine == "llama.cpp"
        quiet_s = 0.0 if counts_late else self.shown.quiet_s
        return f"busy, no token for {formatting.age(quiet_s)}" if quiet_s >= QUIET_S else "busy"

    def connection(self, *, is_paused: bool, is_replay: bool) -> Connection:
        """The state that comes first where several hold."""
        if self.is_starting:
            return Connection.STARTING
        if self.error is not None:
            return Connection.DISCONNECTED
        if is_paused:
            return Connection.PAUSED
        if is_replay and self.shown:
            return Connection.REPLAY
        return Connection.LIVE if self.shown else Connection.CONNECTING
