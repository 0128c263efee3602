"""The unit that `stoker unit systemd` writes, under a real systemd, with a tiny model."""

from __future__ import annotations

import contextlib
import os
import re
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


def _readable_model(systemd: PrivateSystemd, name: str) -> Path:
    model = write_tiny_llama(systemd.folder / f"model-{name}")
    for path in model.iterdir():  # safetensors writes private files
        path.chmod(0o644)
    return model


def _steps(
    systemd: PrivateSystemd, as_user: tuple[str, ...], model: Path, *flags: str
) -> list[str]:
    """Write a unit; the lines that are to be typed next."""
    out = f"/srv/out-{model.name}"
    systemd.run("install", "-d", "-m", "777", out)
    words = (_STOKER, "unit", "systemd", f"/srv/{model.name}", *flags, "-o", out)
    said = systemd.run(*as_user, "sh", "-c", '"$@" 2>&1', "-", *words)
    return [line.strip() for line in said.partition("next, for systemd:\n")[2].splitlines()]


class Service:
    """A unit written for a model of its own, not yet installed."""

    def __init__(self, systemd: PrivateSystemd, name: str, *flags: str) -> None:
        self.systemd = systemd
        self.model = _readable_model(systemd, name)
        self.name = f"stoker-{name}"
        user = ("--user", user_for_services())
        self.steps = _steps(systemd, (), self.model, "--name", name, *user, *flags)

    def install(self) -> str:
        """Do what was to be typed, the start and `stoker status` included; what that prints."""
        return self.systemd.run("sh", "-c", "\n".join(["set -e", _SUDO, *self.steps]))

    def shows(self, **wanted: str) -> bool:
        return all(self.systemd.shown(self.name, key) == value for key, value in wanted.items())

    def main_pid(self) -> str:
        return self.systemd.shown(self.name, "MainPID")

    def processes(self) -> list[psutil.Process]:
        return self.systemd.processes(self.name)

    def wait_for_restart(self, number: int) -> None:
        """At least so many: on a machine that stands still the watchdog may be early."""

        def is_back() -> bool:
            num_restarts = int(self.systemd.shown(self.name, "NRestarts"))
            return num_restarts >= number and self.shows(ActiveState="active", SubState="running")

        wait_for(is_back, _PATIENCE_S, else_say=self.systemd.journal)


def test_it_starts_is_killed_restarts_hangs_and_stops(systemd: PrivateSystemd) -> None:
    service = Service(systemd, "tiny", "--drain", "5", "--stall-after", "10")
    said = service.install()
    assert "tiny: " in said, "`stoker status` as it was to be typed"
    assert service.shows(ActiveState="active", NRestarts="0", Type="notify")
    status = systemd.shown(service.name, "StatusText")
    assert status.endswith(" at http://127.0.0.1:8000")
    assert status.startswith(("ready", "idle"))
    systemd.run(_STOKER, "chat", ":8000", "-m", "hello", "--max-tokens", "3")
    _check_hardening(service)
    shared = f"/run/stoker-of-{user_for_services()}/devices/ram"
    assert systemd.run("find", shared, "-name", "*.json"), "other services see what it holds"

    systemd.run("systemctl", "reload", service.name)
    before = service.processes()
    systemd.run("sh", "-c", f"kill -KILL {service.main_pid()}")
    service.wait_for_restart(1)
    assert not any(is_running(one) for one in before)

    (core,) = filter(_is_core, service.processes())
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


def _is_core(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return "--handshake" in process.cmdline()
    return False


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
    service = Service(systemd, "gone", "--port", "8001")
    service.model.rename(service.model.with_name("elsewhere"))
    with pytest.raises(AssertionError, match="no such model"):
        service.install()
    assert service.shows(ActiveState="failed", SubState="failed", NRestarts="0")
    assert service.shows(Result="exit-code", ExecMainStatus="2")


def test_a_user_needs_no_root(systemd: PrivateSystemd) -> None:
    user, home, runtime = user_for_services(), "/srv/home", "/run/user/it"
    systemd.run("install", "-d", f"--owner={user}", "--mode=700", home, runtime)
    places = (f"HOME={home}", f"XDG_RUNTIME_DIR={runtime}")
    settings = [f"--setenv={one}" for one in places]
    manager = ("--property=Delegate=yes", f"--uid={user}", *settings)
    systemd.run("systemd-run", *manager, "/lib/systemd/systemd", "--user")
    path = f"PATH={os.environ['PATH']}"
    identity = ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups")
    as_user = ("env", "-i", path, *places, *identity)
    control = (*as_user, "systemctl", "--user")
    is_up = (*control, "is-system-running")
    wait_for(lambda: systemd.run(*is_up, is_checked=False).strip() == "running", _PATIENCE_S)

    model = _readable_model(systemd, "mine")
    flags = ("--name", "mine", "--user-unit", "--port", "8002")
    *steps, lingering = _steps(systemd, as_user, model, *flags)
    assert lingering.startswith("loginctl "), "which is not in here"
    systemd.run(*as_user, "sh", "-c", "\n".join(["set -e", *steps]))
    show = (*control, "show", "stoker-mine", "--property=ActiveState,StatusText,Result")
    assert re.search(
        r"^StatusText=(ready|idle) at http://127.0.0.1:8002$", systemd.run(*show), re.M
    )
    systemd.run(*control, "stop", "stoker-mine")
    end = systemd.run(*show).splitlines()
    assert {"ActiveState=inactive", "Result=success"} <= set(end)
