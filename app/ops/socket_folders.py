"""Removes the socket folders that our engine's API server left in the temporary folder.

It deletes its own one at its end, but cannot when it is killed. The folder's name carries its pid.
"""

from __future__ import annotations

import re
import socket
import tempfile
from pathlib import Path

_NAME = re.compile(r"stoker-(\d+)-\w+")


def remove_dead_socket_folders() -> tuple[Path, ...]:
    """Delete the folders of this user whose server is gone; says which."""
    removed = []
    for base in {tempfile.gettempdir(), "/tmp"}:
        for folder in Path(base).glob("stoker-*-*"):
            if _is_dead(folder) and _remove(folder):
                removed.append(folder)
    return tuple(removed)


def _is_dead(folder: Path) -> bool:
    """No process has the pid, and (it may live in another container) no socket answers."""
    import psutil

    found = _NAME.fullmatch(folder.name)
    if found is None or not folder.is_dir() or psutil.pid_exists(int(found[1])):
        return False
    try:
        return not any(_answers(path) for path in folder.iterdir())
    except OSError:  # another user's
        return False


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def _remove(folder: Path) -> bool:
    try:
        for path in folder.iterdir():
            path.unlink(missing_ok=True)
        folder.rmdir()
    except OSError:
        return False
    return True
