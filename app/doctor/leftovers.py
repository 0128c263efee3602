"""Left-overs of earlier runs: what holds memory or a port, blocks a build, or fills the disk."""

from __future__ import annotations

from collections.abc import Sequence

from app.doctor.facts import CacheFolder, DoctorFacts, LeftoverFile, Orphan
from app.doctor.report import Check, Result, command_line
from engine.machine.sizes import human_bytes

_STALE_DOWNLOAD_S = 3600.0
_STALE_LOCK_S = 1800.0
_LARGE_CACHE = 20 << 30
_SHOWN = 5


def checks(facts: DoctorFacts) -> Sequence[Check]:
    found = facts.leftovers
    if found is None:
        return [Check("orphans", "Left processes", Result.SKIPPED, "the facts do not say")]
    return [
        check_orphans(found.orphans),
        check_sockets(found.cleared),
        check_locks(found.files),
        check_downloads(found.files),
        check_caches(found.caches),
    ]


def check_orphans(orphans: Sequence[Orphan]) -> Check:
    """Engine processes whose server has gone."""
    title = "Left processes"
    if not orphans:
        return Check("orphans", title, Result.OK, "none")
    seen = "; ".join(_describe(one) for one in orphans)
    todo = "their server has gone: end them (kill -9 what stays)"
    commands = tuple(f"kill {one.pid}" for one in orphans)
    return Check("orphans", title, Result.PROBLEM, seen, todo, commands)


def check_sockets(cleared: Sequence[str]) -> Check:
    """Socket folders without a server; looking for them has removed them."""
    title = "Left sockets"
    if not cleared:
        return Check("sockets", title, Result.OK, "none")
    shown = ", ".join(cleared[:_SHOWN])
    more = f" and {len(cleared) - _SHOWN} more" if len(cleared) > _SHOWN else ""
    return Check("sockets", title, Result.OK, f"removed {shown}{more}: their server is gone")


def check_locks(files: Sequence[LeftoverFile]) -> Check:
    """Locks of builds that were killed: the next build waits for them without a word."""
    title = "Stale locks"
    stale = [one for one in files if one.kind == "lock" and one.age_s > _STALE_LOCK_S]
    if not stale:
        return Check("locks", title, Result.OK, "none")
    commands = tuple(command_line("rm {}", one.path) for one in stale[:_SHOWN])
    seen = f"{len(stale)} of killed builds, the oldest {_age(stale)} old"
    todo = "if no build of torch's extensions runs now, remove them: the next one waits for ever"
    return Check("locks", title, Result.WARNING, seen, todo, commands)


def check_downloads(files: Sequence[LeftoverFile]) -> Check:
    """Parts of models whose download was broken off."""
    title = "Broken downloads"
    stale = [one for one in files if one.kind == "download" and one.age_s > _STALE_DOWNLOAD_S]
    if not stale:
        return Check("downloads", title, Result.OK, "none")
    size = human_bytes(sum(one.bytes for one in stale))
    seen = f"{len(stale)} files, {size}, the oldest {_age(stale)} old"
    todo = "finish the download (hf download MODEL), or remove the parts"
    commands = tuple(command_line("rm {}", one.path) for one in stale[:_SHOWN])
    return Check("downloads", title, Result.WARNING, seen, todo, commands)


def check_caches(caches: Sequence[CacheFolder]) -> Check:
    """Compiled kernels: worth keeping, unless they fill the disk or an upgrade broke them."""
    title = "Compile caches"
    if not caches:
        return Check("caches", title, Result.OK, "none")
    sizes = (
        f"{one.path} {'' if one.is_whole else 'more than '}{human_bytes(one.bytes)}"
        for one in caches
    )
    seen = ", ".join(sizes)
    if sum(one.bytes for one in caches) < _LARGE_CACHE:
        return Check("caches", title, Result.OK, seen)
    todo = "they are made again when needed, at the price of one slow start"
    largest = max(caches, key=lambda one: one.bytes)
    commands = (command_line("rm -r {}", largest.path),)
    return Check("caches", title, Result.WARNING, seen, todo, commands)


def _describe(orphan: Orphan) -> str:
    holds = []
    if orphan.gpu_bytes:
        holds.append(f"{human_bytes(orphan.gpu_bytes)} of GPU memory")
    holds += [f"port {port}" for port in orphan.ports]
    return f"{orphan.name} (pid {orphan.pid})" + (f" holds {', '.join(holds)}" if holds else "")


def _age(files: Sequence[LeftoverFile]) -> str:
    seconds = max(one.age_s for one in files)
    return f"{seconds / 86400:.0f} days" if seconds >= 2 * 86400 else f"{seconds / 3600:.1f} h"
