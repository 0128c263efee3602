"""Compiles the C++ of this folder on the user's machine, once per source, compiler and CPU.

The file is built with -march=native, so its name carries the CPU: another CPU never loads it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from engine.env import cpu_flags, user_cache_dir
from engine.logger import get_logger

logger = get_logger(__name__)

FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-pthread")

_COMPILERS = ("g++", "clang++", "c++")
_TIMEOUT_S = 300
_SOURCE = Path(__file__).parent / "step.cpp"


class BuildError(Exception):
    """The library cannot be built here; the message says why, in one line."""


def build_library(cache_dir: Path | None = None) -> Path:
    """Path of the built library; compiles it unless `cache_dir` holds it already."""
    compiler = find_compiler()
    target = (cache_dir or default_cache_dir()) / f"step-{_build_key(compiler)}.so"
    if target.is_file():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        logger.info("Building CPU kernels with %s (once per machine)...", compiler[0])
        # Each process builds under a name of its own; the last rename wins, and all are equal.
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            built = Path(folder) / target.name
            _run([*compiler, *FLAGS, str(_SOURCE), "-o", str(built)])
            os.replace(built, target)
    except OSError as error:
        raise BuildError(f"{target.parent} cannot be written: {error}") from error
    return target


def default_cache_dir() -> Path:
    """`kernels` in Stoker's cache folder."""
    return user_cache_dir() / "kernels"


def find_compiler() -> list[str]:
    """The command in $CXX (which may carry flags), or the first compiler on the PATH."""
    chosen = shlex.split(os.environ.get("CXX", ""))
    if chosen:
        if shutil.which(chosen[0]) is None:
            raise BuildError(f"the compiler that CXX names, {chosen[0]}, is not there")
        return chosen
    for name in _COMPILERS:
        if shutil.which(name) is not None:
            return [name]
    raise BuildError(f"there is no C++ compiler on the PATH (looked for {', '.join(_COMPILERS)})")


def _build_key(compiler: list[str]) -> str:
    digest = hashlib.sha256()
    for path in sorted(_SOURCE.parent.glob("*.[ch]*")):
        digest.update(path.read_bytes())
    digest.update("\0".join([*compiler, *FLAGS]).encode())
    digest.update(_run([*compiler, "--version"]).encode())
    digest.update(_cpu().encode())
    return digest.hexdigest()[:24]


def _cpu() -> str:
    """Flags alone would let two models share a file that was tuned for one of them."""
    return " ".join([platform.machine(), *sorted(cpu_flags())])


def _run(command: list[str]) -> str:
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]} does not run: {error}") from error
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines()
        said = next((line for line in lines if "error" in line), lines[-1] if lines else "nothing")
        raise BuildError(f"{command[0]} failed with code {result.returncode}: {said}")
    return result.stdout
