"""Compiles the C++ of this folder on the user's machine, once per source, compiler and CPU.

A file's name says for which instruction set, sources and CPU, and by which compiler it was built,
and ends in a hash of its contents: another CPU never loads it, nor a file that is damaged.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from engine.env import cpu_flags, user_cache_dir
from engine.errors import ConfigError
from engine.kernels.native.instruction_sets import InstructionSet, choose_instruction_set
from engine.logger import get_logger
from engine.machine.locks import file_lock
from engine.machine.ownership import distrust, make_private, temporary_base
from engine.machine.secrets import child_environment

logger = get_logger(__name__)

_FLAGS = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-pthread")

_COMPILERS = ("g++", "clang++", "c++")
_TIMEOUT_S = 300
_FOLDER = Path(__file__).parent
_SOURCES = ("step.cpp", "tiles.cpp")
_KEPT_BUILDS = 16
_BUILD_FOLDER = "build-"  # and the pid, of a build in progress or of one that was killed


class Formats(enum.Enum):
    """What a build has code for: less of it is compiled sooner."""

    BF16 = "bf16"  # weights and KV cache
    ALL = "all"  # and quantized weights, and KV caches in fp8

    @classmethod
    def needed(cls, quantization: str, cache_dtype_bytes: int) -> Formats:
        """For weights with this --quantization, and elements of the KV cache of this size."""
        return cls.BF16 if (quantization, cache_dtype_bytes) == ("none", 2) else cls.ALL

    def flags(self, isa: InstructionSet) -> list[str]:
        if self is Formats.BF16:
            return [*_FLAGS, *isa.flags, *isa.quick, "-DSTOKER_BF16_ONLY"]
        return [*_FLAGS, *isa.flags, "-O3"]


class BuildError(Exception):
    """The library cannot be built here; the message says why and what to do, in one line."""


@contextlib.contextmanager
def built_library(
    isa: InstructionSet, cache_dir: Path | None = None, formats: Formats = Formats.ALL
) -> Iterator[Path]:
    """The library's file, compiled unless `cache_dir` holds it. To be opened inside the block.

    Where the cache cannot be written, or others can write it too, the file is gone after the block;
    the opened library stays.
    """
    folder = cache_dir or default_cache_dir()
    fault = distrust(folder)
    flags, compiler = formats.flags(isa), _find_compiler_or_none()
    stem = f"step-{isa.name}-{_source_key(flags)}"
    if compiler is not None:
        stem += f"-{_compiler_key(compiler)}"
    elif fault is None and (found := _find_built(folder, stem)):  # by whichever compiler it was
        yield found
        return
    else:
        compiler = find_compiler()  # raises
    if fault is None and (found := _find_built(folder, stem)):
        yield found
        return
    try:
        if fault is not None:
            raise PermissionError(f"is not used, since {fault}")
        make_private(folder)
        with _only_one_build(folder):
            built = _find_built(folder, stem) or _build(compiler, isa, flags, folder, stem)
            _remove_old(folder, keep=built)
    except OSError as error:
        logger.warning(
            "CPU kernels are built for this start only: %s %s. "
            "STOKER_CACHE_DIR names another folder.",
            folder,
            error if fault is not None else f"cannot be written ({error.strerror or error})",
        )
        try:
            base = temporary_base()
        except PermissionError as unsafe:
            raise BuildError(str(unsafe)) from unsafe
        with tempfile.TemporaryDirectory(prefix="stoker-kernels-", dir=base) as temporary:
            yield _build(compiler, isa, flags, Path(temporary), stem)
    else:
        yield built


def start_build(formats: Formats) -> threading.Thread:
    """Begin, in a thread, what `built_library` will ask for here or in a child process.

    Whatever goes wrong is for that to tell.
    """
    thread = threading.Thread(target=_build_ahead, args=(formats,), daemon=True)
    thread.start()
    return thread


def _build_ahead(formats: Formats) -> None:
    folder = default_cache_dir()
    with contextlib.suppress(BuildError, ConfigError, OSError):
        make_private(folder)
        if os.access(folder, os.W_OK) and distrust(folder) is None:
            with built_library(choose_instruction_set(), folder, formats):
                pass


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
    raise BuildError(
        f"there is no C++ compiler on the PATH (looked for {', '.join(_COMPILERS)}); install one, "
        "for example with `apt install g++` or `dnf install gcc-c++`"
    )


def _find_compiler_or_none() -> list[str] | None:
    try:
        return find_compiler()
    except BuildError:
        return None


def _find_built(folder: Path, stem: str) -> Path | None:
    """A whole file of this name; damaged ones, and those that others could change, are removed."""
    for path in sorted(folder.glob(f"{stem}-*.so")):
        try:
            if (fault := distrust(path)) is not None:
                logger.warning("CPU kernels are built again: %s.", fault)
                path.unlink()
                continue
            if path.stem.endswith("-" + _content_key(path)):
                return path
            logger.warning("CPU kernels in %s are damaged and are built again.", path)
            path.unlink()
        except OSError as error:
            logger.warning("CPU kernels in %s are not used: %s.", path, error.strerror or error)
    return None


def _build(
    compiler: list[str], isa: InstructionSet, flags: list[str], folder: Path, stem: str
) -> Path:
    logger.info("Building CPU kernels for %s with %s (once)...", isa.title, compiler[0])
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"{_BUILD_FOLDER}{os.getpid()}-", dir=folder) as work:
        output = Path(work) / "step.so"
        _compile(compiler, flags, output)
        target = folder / f"{stem}-{_content_key(output)}.so"
        output.chmod(0o700)  # whatever the umask is: a file that others can write is not loaded
        os.replace(output, target)
    logger.info("Building CPU kernels took %.1f seconds", time.monotonic() - start)
    return target


def _compile(compiler: list[str], flags: list[str], output: Path) -> None:
    """All files at once, then one library; what CXX says comes last, and wins."""
    command, asked = compiler[0], compiler[1:]
    objects = [str(output.with_name(name).with_suffix(".o")) for name in _SOURCES]
    compilations = [
        [command, *flags, *asked, "-c", str(_FOLDER / name), "-o", target]
        for name, target in zip(_SOURCES, objects, strict=True)
    ]
    with ThreadPoolExecutor(len(_SOURCES)) as threads:
        list(threads.map(_run, compilations))
    _run([command, *flags, *asked, "-shared", *objects, "-o", str(output)])


def _remove_old(folder: Path, keep: Path) -> None:
    """A library that a server has open stays usable for it."""
    builds = sorted(folder.glob("step-*.so"), key=lambda path: path.stat().st_mtime)
    for path in builds[:-_KEPT_BUILDS]:
        if path != keep:
            path.unlink()


@contextlib.contextmanager
def _only_one_build(folder: Path) -> Iterator[None]:
    def say() -> None:
        if not any(folder.glob(f"{_BUILD_FOLDER}{os.getppid()}-*")):  # its `start_build`'s own
            logger.info("Another start builds the CPU kernels; waiting for it...")

    with file_lock(folder / "build.lock", say):
        for left in folder.glob(f"{_BUILD_FOLDER}*"):
            logger.info("Removing %s, left by a build that was killed.", left)
            shutil.rmtree(left, ignore_errors=True)
        yield


def _source_key(flags: list[str]) -> str:
    """Of the sources, the flags and the CPU, whose model -march=native also tunes for."""
    digest = hashlib.sha256()
    for path in sorted(_FOLDER.glob("*.[ch]*")):
        digest.update(path.read_bytes())
    digest.update("\0".join(flags).encode())
    digest.update(" ".join([platform.machine(), *sorted(cpu_flags())]).encode())
    return digest.hexdigest()[:16]


def _compiler_key(compiler: list[str]) -> str:
    said = _run([*compiler, "--version"])
    return hashlib.sha256("\0".join([*compiler, said]).encode()).hexdigest()[:8]


def _content_key(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _run(command: list[str]) -> str:
    try:
        result = subprocess.run(
            command,
            env=child_environment(),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]} does not run: {error}") from error
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines()
        said = next((line for line in lines if "error" in line), lines[-1] if lines else "nothing")
        raise BuildError(f"{command[0]} failed with code {result.returncode}: {said}")
    return result.stdout
