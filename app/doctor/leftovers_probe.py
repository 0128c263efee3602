"""Looks for what earlier runs left: engine processes without a server, broken downloads, caches."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from app.doctor.facts import CacheFolder, LeftoverFacts, LeftoverFile, Orphan
from app.supervise.ownerless_files import remove_ownerless_files
from engine.machine.gpus import GpuReading
from engine.machine.hub import hub_cache
from engine.machine.orphans import find_orphans

_MOST_FILES = 20_000  # counting stops there: doctor must stay below a second


def read_leftovers(environ: Mapping[str, str], gpus: GpuReading) -> LeftoverFacts:
    """The facts of this user on this machine."""
    return LeftoverFacts(
        orphans=tuple(_orphans(gpus)),
        cleared=tuple(str(path) for path in remove_ownerless_files()),
        files=(*_broken_downloads(hub_cache(environ)), *_build_locks(environ)),
        caches=tuple(
            found for folder in _cache_folders(environ) if (found := measure(folder)) is not None
        ),
    )


def measure(folder: Path, most_files: int = _MOST_FILES) -> CacheFolder | None:
    """Bytes below the folder; counting stops after `most_files` files."""
    if not folder.is_dir():
        return None
    total = 0
    for count, path in enumerate(_files(folder)):
        if count >= most_files:
            return CacheFolder(path=str(folder), bytes=total, is_whole=False)
        total += path.stat(follow_symlinks=False).st_size
    return CacheFolder(path=str(folder), bytes=total)


def _orphans(gpus: GpuReading) -> Iterator[Orphan]:
    on_gpu: dict[int, int | None] = {
        holder.pid: holder.bytes for gpu in gpus.gpus for holder in gpu.holders
    }
    for one in find_orphans():
        yield Orphan(pid=one.pid, name=one.program, gpu_bytes=on_gpu.get(one.pid), ports=one.ports)


def _broken_downloads(hub: Path) -> Iterator[LeftoverFile]:
    for path in hub.glob("models--*/blobs/*.incomplete"):
        if (found := _file(path, "download")) is not None:
            yield found


def _build_locks(environ: Mapping[str, str]) -> Iterator[LeftoverFile]:
    """torch waits for such a file for ever when the build that made it was killed."""
    base = environ.get("TORCH_EXTENSIONS_DIR")
    folder = Path(base) if base else _cache_home(environ) / "torch_extensions"
    for pattern in ("*/lock", "*/*/lock"):
        for path in folder.glob(pattern):
            if (found := _file(path, "lock")) is not None:
                yield found


def _file(path: Path, kind: str) -> LeftoverFile | None:
    try:
        status = path.stat()
    except OSError:
        return None
    age = max(time.time() - status.st_mtime, 0.0)
    return LeftoverFile(path=str(path), kind=kind, bytes=status.st_size, age_s=round(age))


def _cache_folders(environ: Mapping[str, str]) -> Iterator[Path]:
    home = _cache_home(environ)
    root = environ.get("VLLM_CACHE_ROOT")
    yield (Path(root) if root else home / "vllm") / "torch_compile_cache"
    triton = environ.get("TRITON_CACHE_DIR")
    yield Path(triton) if triton else Path.home() / ".triton" / "cache"
    inductor = environ.get("TORCHINDUCTOR_CACHE_DIR")
    user = environ.get("USER") or environ.get("LOGNAME") or "root"
    yield Path(inductor) if inductor else Path(tempfile.gettempdir()) / f"torchinductor_{user}"
    yield home / "flashinfer"


def _cache_home(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CACHE_HOME")
    return Path(base).expanduser() if base else Path.home() / ".cache"


def _files(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _files(Path(entry.path))
        else:
            yield entry
