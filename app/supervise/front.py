"""A server with a dashboard is two processes: the supervisor, and the front that has the terminal.

The front is what the shell waits for. It shows the dashboard when the supervisor asks for it and
passes signals on. The supervisor has a session of its own: whatever becomes of the terminal and of
the front, it ends the server in order, and it can go on without them (detach).
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from app.client.terminal import is_terminal_gone, watch_terminal
from app.supervise.background import exit_code_of_child, fork_session

QUIT, DETACH, GONE, FAILED = "quit", "detach", "server-gone", "failed"
_SHOW, _CLOSE, _LET_GO = "show", "close", "let-go"
_POLL_S = 0.05
_CLOSE_S = 3.0  # for a dashboard to give the terminal back
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
Show = Callable[[Path, Callable[[], bool]], str]


class FrontLink:
    """The supervisor's end. When the front is gone, the supervisor is told to end (SIGTERM)."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._front = os.getppid()
        self._answers: queue.Queue[str] = queue.Queue()
        self._is_needed = True
        threading.Thread(target=self._listen, name="front", daemon=True).start()

    def show(self, log_path: Path, should_go_on: Callable[[], bool]) -> str:
        """Have the dashboard shown; how it ended: QUIT, DETACH, GONE or FAILED."""
        while not self._answers.empty():  # to an earlier question, come too late
            self._answers.get()
        self._send(f"{_SHOW} {log_path}")
        while should_go_on():
            with contextlib.suppress(queue.Empty):
                return self._answers.get(timeout=_POLL_S)
        self._send(_CLOSE)
        self._wait_for_screen()
        return GONE

    def _wait_for_screen(self) -> None:
        """Until the terminal is given back; not on one that hangs, nor on one that is no more."""
        deadline = time.monotonic() + _CLOSE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                self._answers.get(timeout=_POLL_S)
                return
            if is_terminal_gone() and os.getppid() == self._front:
                os.kill(self._front, signal.SIGKILL)  # it would try to draw for ever

    def let_go(self) -> None:
        """The front ends with code 0; from now on nobody has to be there."""
        self._is_needed = False
        self._send(_LET_GO)

    def _send(self, text: str) -> None:
        with contextlib.suppress(OSError):
            _send(self._link, text)

    def _listen(self) -> None:
        while answer := _receive(self._link):
            self._answers.put(answer)
        self._answers.put(GONE)
        if self._is_needed:
            os.kill(os.getpid(), signal.SIGTERM)


def serve_with_front(supervise: Callable[[FrontLink], int], show: Show) -> int:
    """Fork: the child runs `supervise`, this process is the front; the exit code of both.

    `show` gets the server's log and whether to go on; it returns QUIT, DETACH, GONE or FAILED.
    """
    ours, theirs = socket.socketpair()

    def behind_the_front() -> int:
        ours.close()
        return supervise(FrontLink(theirs))

    pid = fork_session(behind_the_front)
    theirs.close()
    return _Front(pid, ours, show).run()


class _Front:
    """Waits for what the supervisor wants, and for its end."""

    def __init__(self, supervisor: int, link: socket.socket, show: Show) -> None:
        self._supervisor = supervisor
        self._link = link
        self._show = show

    def run(self) -> int:
        for number in _PASSED_ON:
            if number is signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._pass_on)
        if signal.getsignal(signal.SIGHUP) == self._pass_on:
            watch_terminal(lambda: self._pass_on(signal.SIGHUP, None))
        while message := _receive(self._link):
            word, _, path = message.partition(" ")
            if word == _LET_GO:
                return 0
            if word == _SHOW:
                answer = self._show(Path(path), self._is_quiet)
                with contextlib.suppress(OSError):
                    _send(self._link, answer)
        _, status = os.waitpid(self._supervisor, 0)
        return exit_code_of_child(status)

    def _is_quiet(self) -> bool:
        """False when the dashboard has to close: the supervisor wants something, or is gone."""
        return not select.select([self._link], [], [], 0)[0]

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._supervisor, number)
        if number == signal.SIGHUP and is_terminal_gone():
            os._exit(128 + number)  # the screen can neither be drawn nor given back


def _send(link: socket.socket, text: str) -> None:
    link.sendall(os.fsencode(text) + b"\0")


def _receive(link: socket.socket) -> str:
    """One message; empty when the other side is gone."""
    message = b""
    with contextlib.suppress(OSError):
        while (byte := link.recv(1)) not in (b"", b"\0"):
            message += byte
    return os.fsdecode(message)
