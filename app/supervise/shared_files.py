"""Shared memory and socket files that a server's processes use: gone after its end, or removed.

Learnt from the processes while they live (Linux), so that nobody else's files are touched: a
killed process cannot delete its own. Standard library only, for the session guard uses it.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

_SHARED_MEMORY = "/dev/shm/"
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_DELETED = " (deleted)"


class SharedFiles:
    """Call `note` while the processes run, `remove` when they are gone."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._paths: dict[str, None] = {}

    def note(self, pids: Iterable[int]) -> list[str]:
        """Remember the files of these processes; those that are new."""
        known = set(self._paths)
        self._note(pids)
        return [path for path in self._paths if path not in known]

    def add(self, paths: Iterable[str]) -> None:
        """Remember files that somebody else has noted."""
        self._paths.update(dict.fromkeys(paths))

    def _note(self, pids: Iterable[int]) -> None:
        sockets = self._bound_sockets()
        for pid in pids:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                self.add(self._mapped(pid))
            with contextlib.suppress(OSError):
                self.add(self._sockets(pid, sockets))

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(self._paths)

    def remove(self) -> tuple[str, ...]:
        """Delete what is left and in nobody's use; the paths that could not be deleted.

        Only this user's sockets and shared memory are, whatever has taken their names since.
        """
        left = [path for path in self._paths if _is_ours(path)]
        if not left:
            return ()
        used = self._in_use()
        return tuple(path for path in left if path not in used and not unlinked(path))

    def _mapped(self, pid: int) -> Iterator[str]:
        with open(self._proc / str(pid) / "maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                at = line.find(_SHARED_MEMORY)
                if at >= 0 and not line.rstrip("\n").endswith(_DELETED):
                    yield line[at:].rstrip("\n")

    def _sockets(self, pid: int, bound: dict[str, str]) -> Iterator[str]:
        folder = self._proc / str(pid) / "fd"
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                found = _SOCKET.match(os.readlink(folder / name))
                if found is not None and found[1] in bound:
                    yield bound[found[1]]

    def _bound_sockets(self) -> dict[str, str]:
        """Inode -> path of the unix sockets that have a file."""
        try:
            lines = (self._proc / "net" / "unix").read_text(errors="replace").splitlines()
        except OSError:
            return {}
        rows = (line.split(maxsplit=7) for line in lines[1:])
        return {row[6]: row[7] for row in rows if len(row) == 8 and row[7].startswith("/")}

    def _in_use(self) -> set[str]:
        used = set(self._bound_sockets().values())
        for name in os.listdir(self._proc):
            if name.isdecimal():
                with contextlib.suppress(OSError):
                    used.update(self._mapped(int(name)))
        return used


def _is_ours(path: str) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    is_memory = path.startswith(_SHARED_MEMORY) and not stat.S_ISLNK(status.st_mode)
    return (is_memory or stat.S_ISSOCK(status.st_mode)) and status.st_uid == os.getuid()


def unlinked(path: str | Path) -> bool:
    """Delete a file; whether it is gone, also by somebody else's doing."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
