"""Starting children that never outlive us, and the commands that run parts of this engine.

A part is started by the absolute path of this package's `__main__.py`, so that a folder named
engine/ in the current directory is not taken for ours.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from engine.machine.secrets import child_environment

_ENGINE_MAIN = Path(__file__).resolve().parents[1] / "__main__.py"
_SHIM = Path(__file__).with_name("child_shim.py")
_PARENT_CHECK_S = 0.5


def engine_command(subcommand: str, *args: str) -> tuple[str, ...]:
    """Argument list that runs `python -m engine SUBCOMMAND ...` from where this engine lies."""
    return (sys.executable, str(_ENGINE_MAIN), subcommand, *args)


def spawn(
    command: Sequence[str],
    *,
    stdout: int | IO[bytes],
    stderr: int | IO[bytes] = subprocess.STDOUT,
    env: Mapping[str, str] | None = None,
    death_signal: signal.Signals = signal.SIGKILL,
    second_guard: Sequence[str] = (),
    umask: int = -1,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start `command` in a session of its own; on Linux it is killed when this process dies.

    The command begins with a program's path. Without `env` it gets this process's environment, but
    no secret. Call it from a thread that lives as long as the child should: the kernel watches the
    thread. `second_guard` are a script and its first words; `env` then has the mark of the server.
    With -1 as `umask` ours stays.
    """
    shim = [sys.executable, "-I", "-S", str(_SHIM), str(os.getpid()), str(int(death_signal))]
    return subprocess.Popen(
        [*shim, str(len(second_guard)), *second_guard, *command],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env=child_environment() if env is None else dict(env),
        start_new_session=True,
        umask=umask,
        pass_fds=pass_fds,
    )


def end_with_parent(parent: int) -> None:
    """End this process once `parent` is gone, however it went (a SIGKILL tells nobody).

    It may be gone already: who the parent was cannot be asked any more.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_CHECK_S)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a child made by `spawn` with everything in its process group, and reap it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
    process.wait()
