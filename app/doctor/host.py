"""The machine itself: Python, system, port 8000, disk of the cache, shared memory."""

from __future__ import annotations

import platform
import shutil
import sys
from pathlib import Path

from packaging.specifiers import SpecifierSet

from app.doctor.report import Check, Result
from app.doctor.wheel import REQUIRES_PYTHON, glibc_version
from app.ops.model_catalogue import SMOLLM2
from app.ops.ports import is_port_free, port_holder
from app.output import human_bytes
from app.paths import cache_dir

DEFAULT_PORT = 8000
_SHARED_MEMORY = Path("/dev/shm")
_LOW_SHARED_MEMORY_BYTES = 1 << 30


def check_python() -> Check:
    """The interpreter that runs Stoker."""
    version = platform.python_version()
    seen = f"{platform.python_implementation()} {version} ({sys.executable})"
    # Stoker and the vLLM that it knows support the same versions.
    if SpecifierSet(REQUIRES_PYTHON).contains(version, prereleases=True):
        return Check("python", "Python", Result.OK, seen)
    todo = f"install Stoker with Python {REQUIRES_PYTHON}: uv tool install --python 3.12 stoker"
    return Check("python", "Python", Result.PROBLEM, seen, todo)


def check_system() -> Check:
    """Operating system, processor and C library."""
    glibc = glibc_version()
    library = f"glibc {glibc[0]}.{glibc[1]}" if glibc else "no glibc"
    seen = f"{platform.system()} {platform.release()}, {platform.machine()}, {library}"
    return Check("system", "System", Result.OK, seen)


def check_port(port: int = DEFAULT_PORT) -> Check:
    """The port that servers listen on unless told otherwise."""
    title = f"Port {port}"
    if is_port_free("127.0.0.1", port):
        return Check("port", title, Result.OK, "free")
    holder = port_holder(port)
    seen = f"in use by {holder[1]} (pid {holder[0]})" if holder else "in use"
    return Check("port", title, Result.WARNING, seen, f"stoker serve --port {port + 1}")


def check_disk(needed_bytes: int = SMOLLM2.disk_bytes) -> Check:
    """Free space where models are kept, against what making the built-in one needs."""
    folder = cache_dir()
    free = shutil.disk_usage(folder).free
    seen = f"{human_bytes(free)} free in {folder}"
    if free >= needed_bytes:
        return Check("disk", "Cache folder", Result.OK, seen)
    todo = f"{human_bytes(needed_bytes)} are needed; free some, or set STOKER_CACHE_DIR=FOLDER"
    return Check("disk", "Cache folder", Result.PROBLEM, seen, todo)


def check_shared_memory(folder: Path = _SHARED_MEMORY) -> Check:
    """/dev/shm, through which several GPU processes of one server talk."""
    title = "Shared memory"
    if not folder.is_dir():
        return Check("shm", title, Result.SKIPPED, f"no {folder} on this system")
    total = shutil.disk_usage(folder).total
    seen = f"{folder} is {human_bytes(total)}"
    if total >= _LOW_SHARED_MEMORY_BYTES:
        return Check("shm", title, Result.OK, seen)
    todo = "tensor parallel needs more; in a container: docker run --ipc=host or --shm-size 8g"
    return Check("shm", title, Result.WARNING, seen, todo)
