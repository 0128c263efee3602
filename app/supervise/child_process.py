"""Starting servers, which never outlive us, and their guards, which end what a server leaves."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

from app.errors import ExitCode, StokerError
from engine.machine.children import spawn
from engine.machine.secrets import child_environment


def spawn_server(
    command: Sequence[str],
    *,
    stdout: int | IO[bytes],
    env: Mapping[str, str] | None = None,
    death_signal: signal.Signals = signal.SIGKILL,
    guard: int = 0,
    umask: int = -1,
) -> subprocess.Popen[bytes]:
    """`spawn` for a program that may not be there: StokerError says so.

    With SIGSTOP as `death_signal`, a server that stands still keeps its orphans together until a
    guard has ended them. `guard` is that guard's pid; `env` has the mark that it was given.
    """
    second_guard = (str(Path(__file__).with_name("second_guard.py")), str(os.getpid()), str(guard))
    return spawn(
        (_find_program(command[0]), *command[1:]),
        stdout=stdout,
        env=env,
        death_signal=death_signal,
        second_guard=second_guard if guard else (),
        umask=umask,
    )


def start_guard(mark: str) -> subprocess.Popen[bytes]:
    """Start what ends the whole tree of a child of `spawn_server` when this process is gone.

    The kernel's signal reaches the child alone; vLLM's engine processes do not end with it. Closing
    the guard's stdin ends it, and with it what is left of the tree. `mark` is `NAME=value` of the
    child's environment, which all that it starts inherit. It comes before the child, whose pid it
    gets by `tell_guard`: there is no moment without it.
    """
    guard = str(Path(__file__).with_name("session_guard.py"))
    return subprocess.Popen(
        [sys.executable, "-I", "-S", guard, mark],
        env=child_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def tell_guard(guard: subprocess.Popen[bytes], words: Iterable[str]) -> None:
    """First the child's pid; then names of shared memory and sockets to remove at last."""
    assert guard.stdin is not None
    with contextlib.suppress(OSError):  # somebody has killed the guard
        guard.stdin.write(b"".join(os.fsencode(word) + b"\0" for word in words))
        guard.stdin.flush()


def _find_program(name: str) -> str:
    found = shutil.which(name)
    if found is not None:
        return str(Path(found).absolute())
    if Path(name).is_file():
        raise StokerError(f"cannot start {name}: not executable", exit_code=ExitCode.NOT_EXECUTABLE)
    raise StokerError(f"cannot start {name}: not found", exit_code=ExitCode.NOT_FOUND)
