"""Debian's systemd, booted by run_private.sh in namespaces of its own, as a context manager."""

from __future__ import annotations

import contextlib
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.debian_packages import require_programs
from tests.waiting import wait_for

_SCRIPT = Path(__file__).with_name("run_private.sh")
_PROGRAMS = ("systemctl", "journalctl", "unshare", "nsenter", "setpriv")
_PATIENCE_S = 120.0


def require_private_systemd() -> None:
    """Skip the test where none can be booted, with the reason."""
    require_programs(_PROGRAMS, "systemd")
    if not Path("/lib/systemd/systemd").exists():
        pytest.skip("systemctl is here, systemd is not")
    done = subprocess.run([_SCRIPT, "--try"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no namespaces here for a systemd of its own: {done.stderr.strip()}")
    if any(Path(sys.prefix).is_relative_to(folder) for folder in ("/tmp", "/var/tmp")):
        pytest.skip(f"a unit with PrivateTmp does not see {sys.prefix}")


class PrivateSystemd:
    """`folder` is /srv in there; nothing that is done in there stays."""

    def __init__(self, folder: Path) -> None:
        self._log = folder.with_suffix(".log")
        self.folder = folder
        self._pid = 0

    def __enter__(self) -> PrivateSystemd:
        with self._log.open("wb") as log:
            self._script = subprocess.Popen([_SCRIPT, self.folder], stdout=log, stderr=log)
        try:
            wait_for(lambda: self._is_booted() or not self._is_there(), _PATIENCE_S)
            if not self._is_there():
                raise RuntimeError(f"systemd does not boot here: {self._log.read_text()}")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(self, *words: str, is_checked: bool = True) -> str:
        """What a command in there prints on stdout."""
        done = subprocess.run(
            ["nsenter", "--all", f"--target={self._pid}", "--", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE_S,
        )
        if is_checked:
            assert done.returncode == 0, f"{words}: {done.stderr}\n{self.journal()}"
        return done.stdout

    def shown(self, unit: str, field: str) -> str:
        """One property of a unit, as `systemctl show` has it."""
        return self.run("systemctl", "show", "--value", f"--property={field}", unit).strip()

    def journal(self, *words: str) -> str:
        """Messages, oldest first."""
        command = ("journalctl", "--no-pager", "--quiet", "--output=cat", *words)
        return self.run(*command, is_checked=False)

    def processes(self, unit: str) -> list[psutil.Process]:
        """Every process in the control group of a unit."""
        group = Path(f"/proc/{self._pid}/root/sys/fs/cgroup/system.slice/{unit}.service")
        try:
            pids = (group / "cgroup.procs").read_text().split()
        except FileNotFoundError:  # it goes with the last process
            return []
        found = []
        for pid in pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(int(pid)))
        return found

    def _is_there(self) -> bool:
        return self._script.poll() is None

    def _is_booted(self) -> bool:
        if not self._pid:
            self._pid = self._first_process() or 0
        if not self._pid:
            return False
        state = self.run("systemctl", "is-system-running", is_checked=False)
        return state.strip() in ("running", "degraded")

    def _first_process(self) -> int | None:
        """The systemd that is the first of its namespace, by its number in ours."""
        if not self._is_there():
            return None
        below = psutil.Process(self._script.pid).children(recursive=True)
        named = (one.pid for one in below if one.name() == "systemd")
        return next((pid for pid in named if _inner_pids(pid)[1:] == ["1"]), None)

    def _end(self) -> None:
        self._script.terminate()
        self._script.wait()


def _inner_pids(pid: int) -> list[str]:
    """A process's number in ours and in each namespace below; empty when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return []
    return status.partition("\nNSpid:")[2].partition("\n")[0].split()


def user_for_services() -> str:
    """Not root, where others can open the checkout and its interpreter."""
    paths = (Path(sys.executable), Path(sys.executable).resolve(), Path(__file__))
    folders = {folder for path in paths for folder in path.parents}
    return "daemon" if all(folder.stat().st_mode & stat.S_IXOTH for folder in folders) else "root"
