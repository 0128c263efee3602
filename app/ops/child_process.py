"""Starting children that never outlive us, and the commands by which our own engine is started.

The engine is started by the absolute path of its `__main__.py` and never imported here, so that a
folder named engine/ in the current directory is not taken for ours.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from app.errors import ExitCode, StokerError

ENGINE_PACKAGES = ("torch", "safetensors", "tokenizers", "fastapi", "uvicorn", "zmq", "msgspec")


def engine_command(subcommand: str, *args: str) -> tuple[str, ...]:
    """Argument list that runs `python -m engine SUBCOMMAND ...` from where our engine lies."""
    return (sys.executable, str(_engine_main()), subcommand, *args)


def require_engine_extra() -> None:
    """Raise StokerError with the install command unless the [engine] extra is there."""
    missing = [name for name in ENGINE_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise StokerError(
            "this command needs the engine extra",
            hint=f"pip install 'stoker[engine]' (not installed: {', '.join(missing)})",
        )


def spawn(
    command: Sequence[str],
    *,
    stdout: int | IO[bytes],
    stderr: int | IO[bytes] = subprocess.STDOUT,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start `command` in a session of its own; on Linux it is killed when this process dies.

    Call it from a thread that lives as long as the child should: the kernel watches the thread.
    """
    shim = [sys.executable, "-I", "-S", str(Path(__file__).with_name("child_shim.py"))]
    return subprocess.Popen(
        [*shim, str(os.getpid()), _find_program(command[0]), *command[1:]],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env=None if env is None else dict(env),
        start_new_session=True,
    )


def guard_session(session: int, mark: str) -> subprocess.Popen[bytes]:
    """Start what ends the whole tree of a child made by `spawn` when this process is gone.

    The kernel's signal reaches the child alone; vLLM's engine processes do not end with it. Closing
    the guard's stdin ends it, and with it what is left of the tree. `mark` is `NAME=value` of the
    child's environment, which all that it starts inherit.
    """
    guard = str(Path(__file__).with_name("session_guard.py"))
    return subprocess.Popen(
        [sys.executable, "-I", "-S", guard, str(session), mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a child made by `spawn` with everything in its process group, and reap it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
    process.wait()


def _engine_main() -> Path:
    spec = importlib.util.find_spec("engine")
    if spec is None or spec.origin is None:
        raise StokerError(
            "Stoker's engine package is missing from this installation",
            hint="pip install --force-reinstall 'stoker[engine]'",
        )
    return Path(spec.origin).with_name("__main__.py").resolve()


def _find_program(name: str) -> str:
    found = shutil.which(name)
    if found is not None:
        return str(Path(found).absolute())
    if Path(name).is_file():
        raise StokerError(f"cannot start {name}: not executable", exit_code=ExitCode.NOT_EXECUTABLE)
    raise StokerError(f"cannot start {name}: not found", exit_code=ExitCode.NOT_FOUND)
