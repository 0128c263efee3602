"""Removes what killed servers left behind without an owner: socket folders, and OpenMP's segment.

Our API server deletes its folder at its end, but cannot when it is killed; torch's OpenMP leaves a
segment of shared memory in the same way. Both carry the pid. Links are not followed, and nothing of
another user's is touched.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from app.supervise.shared_files import unlinked
from engine.machine.ports import is_uds_served

_FOLDER = re.compile(r"stoker-(\d+)-\w+")
_COUNTS = re.compile(r"(?:counter|gauge_\w+|histogram|summary)_\d+\.db")  # of several API servers
_SEGMENT = re.compile(r"__KMP_REGISTERED_LIB_(\d+)_\d+")
_SHARED_MEMORY = Path("/dev/shm")
_EMPTY_S = 600.0  # no start takes so long to its first socket
_NO_LINK = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def remove_ownerless_files(shared_memory: Path = _SHARED_MEMORY) -> tuple[Path, ...]:
    """Delete those of this user whose process is gone; says which. Never fails."""
    removed = []
    # `gettempdir` tries to write, and there is no such folder while the disk is full.
    named = (tempfile.tempdir, os.environ.get("TMPDIR"), "/tmp", "/var/tmp")
    for base in dict.fromkeys(str(one) for one in named if one):
        for folder in _of_dead_processes(Path(base), "stoker-*-*", _FOLDER):
            if _remove_folder(folder):
                removed.append(folder)
    for segment in _of_dead_processes(shared_memory, "__KMP_*", _SEGMENT):
        if _is_our_file(segment) and unlinked(segment):
            removed.append(segment)
    return tuple(removed)


def _of_dead_processes(base: Path, glob: str, name: re.Pattern[str]) -> Iterator[Path]:
    import psutil

    for path in base.glob(glob):
        found = name.fullmatch(path.name)
        if found is not None and not psutil.pid_exists(int(found[1])):
            yield path


def _remove_folder(folder: Path) -> bool:
    """False for one that is not ours, holds more than sockets and counts, or has one that answers.

    Its process may live in another container: an empty folder may have been made just now.
    """
    try:
        descriptor = os.open(folder, _NO_LINK)
    except OSError:
        return False
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.getuid():
            return False
        names = os.listdir(descriptor)
        is_young = time.time() - status.st_mtime < _EMPTY_S
        if (not names and is_young) or not all(
            _is_dead(folder, name, descriptor) for name in names
        ):
            return False
        for name in names:
            os.unlink(name, dir_fd=descriptor)
        os.rmdir(folder)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _is_dead(folder: Path, name: str, descriptor: int) -> bool:
    status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
    if status.st_uid != os.getuid():
        return False
    if stat.S_ISREG(status.st_mode):
        return _COUNTS.fullmatch(name) is not None
    return stat.S_ISSOCK(status.st_mode) and not is_uds_served(str(folder / name))


def _is_our_file(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()
