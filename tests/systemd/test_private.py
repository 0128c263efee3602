"""The unit that `stoker unit systemd` writes, under a real systemd, with a tiny model."""

from __future__ import annotations

import contextlib
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.systemd.private_systemd import (
    PrivateSystemd,
    require_private_systemd,
    user_for_services,
)
from tests.tiny_model import write_tiny_llama
from tests.waiting import is_running, wait_for

pytestmark = pytest.mark.slow
_STOKER = str(Path(sys.executable).with_name("stoker"))
_PATIENCE_S = 120.0
_SUDO = """sudo() {
  if [ "$1" != -u ]; then "$@"; return; fi
  user=$2; shift 2
  env -i PATH="$PATH" setpriv --reuid="$user" --regid="$user" --clear-groups "$@"
}"""


@pytest.fixture(scope="module")
def systemd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateSystemd]:
    require_private_systemd()
    folder = tmp_path_factory.mktemp("systemd") / "srv"
    folder.mkdir(mode=0o755)
    with contextlib.ExitStack() as stack:
        try:
            booted = stack.enter_context(PrivateSystemd(folder))
        except RuntimeError as error:
            pytest.skip(str(error))
        yield booted


class Service:
    """A unit written for a model of its own, not yet installed."""

    def __init__(self, systemd: PrivateSystemd, folder: Path, name: str, *flags: str) -> None:
        self.systemd = systemd
        self.model = write_tiny_llama(folder / f"model-{name}")
        for path in self.model.iterdir():  # safetensors writes private files
            path.chmod(0o644)
        self.name = f"stoker-{name}"
        words = ["unit", "systemd", f"/srv/{self.model.name}", "--name", name, *flags]
        self.steps = self._write(*words, "--user", user_for_services(), "-o", f"/srv/{name}")

    def _write(self, *words: str) -> list[str]:
        """The lines that are to be typed next."""
        said = self.systemd.run("sh", "-c", 'cd /srv && "$@" 2>&1', "-", _STOKER, *words)
        return [line.strip() for line in said.partition("next, for systemd:\n")[2].splitlines()]

    def install(self) -> str:
        """Do what was to be typed, the start and `stoker status` included; what that prints."""
        folder = f"/srv/{self.name.removeprefix('stoker-')}"
        script = "\n".join([f"set -e; cd {folder}", _SUDO, *self.steps])
        return self.systemd.run("sh", "-c", script)

    def shows(self, **wanted: str) -> bool:
        return all(self.systemd.shown(self.name, key) == value for key, value in wanted.items())

    def main_pid(self) -> str:
        return self.systemd.shown(self.name, "MainPID")

    def processes(self) -> list[psutil.Process]:
        return self.systemd.processes(self.name)

    def wait_for_restart(self, number: int) -> None:
        wanted = {"ActiveState": "active", "SubState": "running", "NRestarts": str(number)}
        wait_for(lambda: self.shows(**wanted), _PATIENCE_S, else_say=self.systemd.journal)


def test_it_starts_is_killed_restarts_hangs_and_stops(systemd: PrivateSystemd) -> None:
    service = Service(systemd, systemd.folder, "tiny", "--drain", "5", "--stall-after", "5")
    said = service.install()
    assert "tiny: " in said, "`stoker status` as it was to be typed"
    assert service.shows(ActiveState="active", NRestarts="0", Type="notify")
    status = systemd.shown(service.name, "StatusText")
    assert status.endswith(" at http://127.0.0.1:8000")
    assert status.startswith(("ready", "idle"))
    systemd.run(_STOKER, "chat", ":8000", "-m", "hello", "--max-tokens", "3")
    _check_hardening(service)

    systemd.run("systemctl", "reload", service.name)
    before = service.processes()
    systemd.run("sh", "-c", f"kill -KILL {service.main_pid()}")
    service.wait_for_restart(1)
    assert not any(is_running(one) for one in before)

    (core,) = (one for one in service.processes() if "--handshake" in one.cmdline())
    core.send_signal(signal.SIGSTOP)
    service.wait_for_restart(2)
    assert "Watchdog timeout" in systemd.journal(f"--unit={service.name}")
    # Of our own words as of systemd's: the journal knows which are grave.
    assert "the server is stalled" in systemd.journal(f"--unit={service.name}", "--priority=4")

    last = service.processes()
    systemd.run("systemctl", "stop", service.name)
    assert service.shows(ActiveState="inactive", Result="success"), "not killed for its slowness"
    assert not any(is_running(one) for one in last)
    assert service.processes() == []
    records = "/var/lib/stoker-tiny/run/servers"
    assert systemd.run("find", "/dev/shm", records, "-mindepth", "1") == ""


def _check_hardening(service: Service) -> None:
    """It is closed in, and reaches the cards all the same."""
    root = f"/proc/{service.main_pid()}/root"
    run = service.systemd.run
    for card in ("nvidia0", "nvidiactl", "nvidia-uvm", "kfd", "dri/renderD128"):
        assert stat.S_ISCHR(int(run("stat", "--format=%f", f"{root}/dev/{card}"), 16))
        run("dd", "if=/dev/zero", f"of={root}/dev/{card}", "count=1")
    assert "NoNewPrivs:\t1" in run("cat", f"/proc/{service.main_pid()}/status")
    mounts = run("cat", f"/proc/{service.main_pid()}/mountinfo").splitlines()
    options = {line.split()[4]: line.split()[5] for line in mounts}
    assert options["/"].startswith("ro")
    assert options["/var/lib/stoker-tiny"].startswith("rw")
    assert "/tmp" in options, "its own"


def test_what_another_start_would_repeat_is_not_started_again(systemd: PrivateSystemd) -> None:
    service = Service(systemd, systemd.folder, "gone", "--port", "8001")
    service.model.rename(service.model.with_name("elsewhere"))
    with pytest.raises(AssertionError, match="no such model"):
        service.install()
    assert service.shows(ActiveState="failed", SubState="failed", NRestarts="0")
    assert service.shows(Result="exit-code", ExecMainStatus="2")
