"""Where the limits of this process stand: the folders of its Linux control groups, v1 and v2.

Paths lie below `root`, so that tests can lay out another machine. Nothing is found outside Linux.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path("/")
_DEFAULT_MOUNT = PurePosixPath("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class _Mount:
    """A mounted hierarchy. `top` is the group that is seen at `point`; v2 has no controllers."""

    point: PurePosixPath
    top: PurePosixPath
    controllers: frozenset[str]


def group_folders(controller: str, root: Path = ROOT) -> Iterator[Path]:
    """Folders of this process's group and of all above it, its own first, in every hierarchy.

    `controller` is `memory` or `cpu`. In a container the kernel may name a group that cannot be
    seen from inside; what is mounted is then the nearest one.
    """
    mounts = list(_mounts(root))
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        names, _, group = rest.partition(":")
        if names and controller not in names.split(","):
            continue
        for mount in mounts or _usual_mounts(names, controller, root):
            if (controller in mount.controllers) if names else not mount.controllers:
                yield from _upwards(mount, PurePosixPath(group), root)


def read_number(path: Path) -> int | None:
    """A file with one decimal number; None for `max`, another word, or no such file."""
    text = read_text(path)
    return int(text) if text.isdecimal() else None


def read_text(path: Path) -> str:
    """What a file of the kernel holds, stripped; empty when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _mounts(root: Path) -> Iterator[_Mount]:
    """man 5 proc_pid_mountinfo: ID, parent, device, top, point, options, `-`, kind, source, more"""
    for line in read_text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        top, point = (PurePosixPath(_unescaped(field)) for field in fields[3:5])
        controllers = kind[2].split(",") if kind[0] == "cgroup" else ()
        yield _Mount(point, top, frozenset(controllers))


def _usual_mounts(names: str, controller: str, root: Path) -> Iterator[_Mount]:
    """Where they are on nearly every system, for one without /proc/self/mountinfo."""
    top = PurePosixPath("/")
    if not names:
        yield _Mount(_DEFAULT_MOUNT, top, frozenset())
        return
    together = _DEFAULT_MOUNT / names
    is_together = (root / together.relative_to("/")).is_dir()
    point = together if is_together else _DEFAULT_MOUNT / controller
    yield _Mount(point, top, frozenset(names.split(",")))


def _upwards(mount: _Mount, group: PurePosixPath, root: Path) -> Iterator[Path]:
    point = root / mount.point.relative_to("/")
    is_below = mount.top in (group, *group.parents) and ".." not in group.parts
    folder = point / group.relative_to(mount.top) if is_below else point
    yield from (one for one in (folder, *folder.parents) if point in (one, *one.parents))


def _unescaped(field: str) -> str:
    return field.encode("latin-1", "replace").decode("unicode_escape") if "\\" in field else field
