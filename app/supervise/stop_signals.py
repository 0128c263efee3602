"""Turns SIGINT, SIGTERM and SIGHUP into a flag, so that the main loop stops the server in order.

A second signal asks to hurry. Handlers only set flags and call one function that does the same.
SIGUSR1 asks what the server does. Under a service manager SIGHUP asks to read the settings again;
elsewhere it is a terminal that was closed.
Ctrl-Z (SIGTSTP) is not obeyed: a server whose output nobody reads stands still before long.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

_WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Context manager for the main thread; `received` is the first signal that came."""

    def __init__(self, on_second: Callable[[], None], *, is_service: bool = False) -> None:
        self.received: signal.Signals | None = None
        self._on_second = on_second
        self._is_service = is_service
        self._is_suspension_asked = False
        self._is_state_asked = False
        self._is_reload_asked = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        for number in _WATCHED:
            previous = signal.getsignal(number)
            if number is signal.SIGHUP and previous is signal.SIG_IGN:  # nohup
                continue
            # A script's background job starts with SIGINT ignored; who sends it means it all the
            # same.
            self._previous[number] = previous
            signal.signal(number, self._handle)
        if self._is_service:
            self._watch(signal.SIGHUP, self._note_reload)
        self._watch(signal.SIGUSR1, self._note_state)
        if (previous := signal.getsignal(signal.SIGTSTP)) is not signal.SIG_IGN:
            self._previous[signal.SIGTSTP] = previous
            signal.signal(signal.SIGTSTP, self._note_suspension)
        return self

    def __exit__(self, *_: object) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    def _watch(self, number: signal.Signals, handler: Callable[..., None]) -> None:
        self._previous.setdefault(number, signal.getsignal(number))
        signal.signal(number, handler)

    def is_requested(self) -> bool:
        """True once a signal has come."""
        return self.received is not None

    def take_suspension(self) -> bool:
        """True once for each Ctrl-Z."""
        is_asked, self._is_suspension_asked = self._is_suspension_asked, False
        return is_asked

    def take_state_request(self) -> bool:
        """True once for each SIGUSR1."""
        is_asked, self._is_state_asked = self._is_state_asked, False
        return is_asked

    def take_reload_request(self) -> bool:
        """True once for each SIGHUP of a service manager."""
        is_asked, self._is_reload_asked = self._is_reload_asked, False
        return is_asked

    def _note_state(self, number: int, frame: FrameType | None) -> None:
        self._is_state_asked = True

    def _note_reload(self, number: int, frame: FrameType | None) -> None:
        self._is_reload_asked = True

    def _note_suspension(self, number: int, frame: FrameType | None) -> None:
        self._is_suspension_asked = True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = signal.Signals(number)
        else:
            self._on_second()
