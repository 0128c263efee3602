"""Whether a file or folder can be believed: owned by this user or root, changed by nobody else.

A library that is loaded runs as this user, so nobody else may be able to write it or to put another
one in its place: the file, its folder and every folder above are looked at. Where the system has no
owners (Windows) everything is believed.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_OTHERS_CAN_WRITE = stat.S_IWGRP | stat.S_IWOTH
_PRIVATE = 0o700


@dataclass(frozen=True, slots=True)
class Distrust:
    """Why something is not believed: `path` is the file or folder at fault, `reason` says of it.

    `owner` is another user whom it belongs to.
    """

    path: Path
    reason: str
    remedy: str
    owner: str | None = None

    def __str__(self) -> str:
        return f"{self.path} {self.reason} ({self.remedy})"


def distrust(path: Path) -> Distrust | None:
    """The first fault of `path` or of a folder above it; None when it can be believed.

    What does not exist is no fault: this user will make it. Links are followed, and looked at too.
    """
    if not hasattr(os, "geteuid"):
        return None
    absolute = Path(os.path.abspath(path))
    chains = dict.fromkeys([absolute, Path(os.path.realpath(absolute))])
    for chain in chains:
        for one in (chain, *chain.parents):
            if (fault := own_distrust(one, is_target=one == chain)) is not None:
                return fault
    return None


def own_distrust(path: Path, *, is_target: bool = True) -> Distrust | None:
    """A fault of this one file or folder, whatever lies above it.

    In a folder with the sticky bit, as /tmp is, others can add files but not replace ours: that
    will do for a folder above the target, where a name of ours stands already.
    """
    try:
        link, status = path.lstat(), path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return Distrust(path, f"cannot be looked at: {error.strerror}", "choose another folder")
    me = os.geteuid()
    for owner in (link.st_uid, status.st_uid):
        if owner not in (me, 0):
            remedy = f"sudo chown {_user_name(me)} {shlex.quote(str(path))}"
            name = _user_name(owner)
            return Distrust(path, f"belongs to another user, {name}", remedy, name)
    is_sticky_above = not is_target and bool(status.st_mode & stat.S_ISVTX)
    if status.st_mode & _OTHERS_CAN_WRITE and not is_sticky_above:
        if not status.st_mode & stat.S_IWOTH and _is_private_group(status.st_gid, me):
            return None
        remedy = f"chmod go-w {shlex.quote(str(path))}"
        if status.st_uid != me:
            remedy = f"its owner, {_user_name(status.st_uid)}, can type: chmod +t {path}"
        return Distrust(path, f"can be changed by other users (mode {_mode(status)})", remedy)
    return None


def make_private(folder: Path) -> None:
    """Make the folder and those missing above it for this user alone; OSError when it cannot be."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(mode=_PRIVATE, exist_ok=True)
    if not folder.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))


def temporary_base() -> str:
    """The folder for temporary files if nobody can swap what is in it, else the next that serves.

    Raises PermissionError when there is none.
    """
    faults = []
    for base in dict.fromkeys(_temporary_bases()):
        # A name in it is made new by mkdtemp, so the sticky bit protects it as it does in /tmp.
        fault = distrust(Path(base, f".stoker-{os.getpid()}"))
        if fault is None:
            return base
        faults.append(str(fault))
    raise PermissionError(f"no folder for temporary files is safe: {'; '.join(faults)}")


def _temporary_bases() -> Iterator[str]:
    yield tempfile.gettempdir()
    yield from (base for base in ("/tmp", "/var/tmp") if os.access(base, os.W_OK | os.X_OK))


def _is_private_group(group: int, user: int) -> bool:
    """Many systems give each user a group of the same name, and let it write by default."""
    import grp
    import pwd

    try:
        entry, name = grp.getgrgid(group), pwd.getpwuid(user).pw_name
    except KeyError:
        return False
    return entry.gr_name == name and set(entry.gr_mem) <= {name}


def _user_name(user: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _mode(status: os.stat_result) -> str:
    return f"{stat.S_IMODE(status.st_mode):o}"
