"""Programs of Debian's packages for tests that need real ones.

Where nothing can be broken by it, they are installed: as root, on a machine that no service manager
runs (a container, a builder). STOKER_TEST_APT=0 forbids it. Elsewhere a test is skipped, by name.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

_SYSTEM_FOLDERS = "/usr/sbin:/sbin"
_FETCH_S = 60.0  # no machine without a network holds the tests up for longer
_POLICY = Path("/usr/sbin/policy-rc.d")
_APT = ("apt-get", "-y", "-q", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=60")
_HASTE = ("-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=10")


def require_programs(programs: tuple[str, ...], *packages: str) -> None:
    """Skip the test where a program is missing and its package cannot be installed."""
    if reason := why_missing(programs, packages):
        pytest.skip(reason)


@functools.cache
def why_missing(programs: tuple[str, ...], packages: tuple[str, ...]) -> str | None:
    """Which programs cannot be had, and why; None when all are there, now or from now on."""
    if not (missing := _missing(programs)):
        return None
    wanted = f"missing: {', '.join(missing)} (apt install {' '.join(packages)})"
    if reason := _why_no_apt():
        return f"{wanted}; {reason}"
    said = _install(packages)
    return f"{wanted}; apt-get: {said}" if _missing(programs) else None


def search_path() -> str:
    """PATH with the folders of system programs, which an ordinary user's lacks."""
    return f"{os.environ.get('PATH', os.defpath)}:{_SYSTEM_FOLDERS}"


def _missing(programs: tuple[str, ...]) -> list[str]:
    return [name for name in programs if shutil.which(name, path=search_path()) is None]


def _why_no_apt() -> str | None:
    if os.environ.get("STOKER_TEST_APT") == "0":
        return "STOKER_TEST_APT=0 forbids it"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return "only root can install it, by apt-get"
    if Path("/run/systemd/system").exists():
        return "tests change no machine that a service manager runs"
    return None


def _install(packages: tuple[str, ...]) -> str:
    """What apt-get said last; only fetching has a limit, so that none is left half-installed."""
    is_fetched, said = _update()
    if is_fetched:
        fetch = (*_APT, *_HASTE, "--download-only", "install", *packages)
        is_fetched, said = _run(fetch, _FETCH_S)
    if not is_fetched:
        return said
    with _no_daemon_started():
        return _run((*_APT, "install", *packages), None)[1]


@functools.cache
def _update() -> tuple[bool, str]:
    """Fetch the lists of packages; a failure says once for all that no archive is reached."""
    return _run((*_APT, *_HASTE, "-o", "APT::Update::Error-Mode=any", "update"), _FETCH_S)


def _run(command: tuple[str, ...], timeout_s: float | None) -> tuple[bool, str]:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"nothing came in {timeout_s} s"
    return done.returncode == 0, done.stderr.strip().rpartition("\n")[2]


@contextlib.contextmanager
def _no_daemon_started() -> Iterator[None]:
    """Packages start their daemons unless a policy forbids it (101)."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()
