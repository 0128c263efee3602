"""Starts a supervisor in the background and shows its start until it is ready or has failed.

The supervisor is a fork: it keeps the key in memory, where no argument list and no file shows it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

_POLL_S = 0.1
_SILENT = """error: the start failed, and why could not be written into {} (exit code {})
hint: is that disk full? `stoker serve` without --detach says it here
"""


@dataclass(frozen=True, slots=True)
class BackgroundStart:
    """A supervisor process and the file with what it prints."""

    pid: int
    output: Path


def start_in_background(supervise: Callable[[], int], output: Path) -> BackgroundStart:
    """Fork; the child, in a session of its own, runs `supervise` and exits with its result."""
    descriptor = open_output(output)

    def detached() -> int:
        leave_terminal(descriptor)
        return supervise()

    pid = fork_session(detached)
    os.close(descriptor)
    return BackgroundStart(pid, output)


def fork_session(run: Callable[[], int]) -> int:
    """Fork; the child, in a session of its own, ends with what `run` returns. Its pid."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _run_in_session(run)
    return pid


def follow_start(
    start: BackgroundStart, is_ready: Callable[[], bool], show: Callable[[str], None]
) -> int | None:
    """Show what the supervisor prints; None once the server is ready, else its exit code.

    Ctrl-C ends the start, as it does in the foreground.
    """
    is_silent = True
    with start.output.open(encoding="utf-8", errors="replace") as file:
        while True:
            try:
                code = _exit_code(start.pid)
                ready = code is None and is_ready()
                if text := file.read():
                    show(text)
                    is_silent = False
                if code and is_silent:
                    show(_SILENT.format(start.output, code))
                if code is not None or ready:
                    return code
                time.sleep(_POLL_S)
            except KeyboardInterrupt:
                os.kill(start.pid, signal.SIGTERM)


def open_output(path: Path) -> int:
    """A descriptor of the file that takes what a supervisor in the background prints."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)


def leave_terminal(output: int) -> None:
    """From now on print into `output`, which is closed here, and read nothing."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    for descriptor in {nothing, output} - {0, 1, 2}:
        os.close(descriptor)


def exit_code_of_child(status: int) -> int:
    """Of `waitpid`'s status; 128 + number after a signal, as in a shell."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _run_in_session(run: Callable[[], int]) -> NoReturn:
    code = 1
    try:
        os.setsid()
        code = run()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)  # never back into the parent's stack


def _exit_code(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return exit_code_of_child(status) if ended else None
