"""Starting children that never outlive us, and the commands by which our own engine is started.

The engine is started by the absolute path of its `__main__.py` and never imported here, so that a
folder named engine/ in the current directory is not taken for ours.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

from app.errors import ExitCode, StokerError
from engine.machine.secrets import child_environment

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
    death_signal: signal.Signals = signal.SIGKILL,
    guard: int = 0,
) -> subprocess.Popen[bytes]:
    """Start `command` in a session of its own; on Linux it is killed when this process dies.

    Without `env` it gets this process's environment, but no secret.

    Call it from a thread that lives as long as the child should: the kernel watches the thread.
    With SIGSTOP as `death_signal`, a server that stands still keeps its orphans together until a
    guard has ended them. `guard` is that guard's pid; `env` has the mark that it was given.
    """
    shim = [sys.executable, "-I", "-S", str(Path(__file__).with_name("child_shim.py"))]
    program = _find_program(command[0])
    return subprocess.Popen(
        [*shim, str(os.getpid()), str(int(death_signal)), str(guard), program, *command[1:]],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env=child_environment() if env is None else dict(env),
        start_new_session=True,
    )


def start_guard(mark: str) -> subprocess.Popen[bytes]:
    """Start what ends the whole tree of a child made by `spawn` when this process is gone.

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
