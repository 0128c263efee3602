"""A server in a terminal of its own: the terminal goes away, the user leaves or detaches."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.commands.selftest import show_dashboard
from app.ops.selftest import Trial, fake_spec, run_trial
from app.ops.selftest_trials import terminal_trials
from app.ops.server_registry import READY_STATES, ServerRegistry
from app.ops.stopping import stop_server

SCRIPT = Path(__file__).with_name("front_fake.py")


@pytest.mark.parametrize("trial", terminal_trials(show_dashboard), ids=lambda trial: trial.title)
def test_nothing_hangs_on_a_terminal(trial: Trial) -> None:
    assert run_trial(trial, fake_spec).problem is None


class Terminal:
    """`stoker serve` in a terminal, and what is on it."""

    def __init__(self, state: Path, mode: str) -> None:
        self.registry = ServerRegistry(state / "run" / "servers")
        self._screen, inside = pty.openpty()
        environment = {
            **os.environ,
            "STOKER_STATE_DIR": str(state),
            "TERM": "xterm",
            "COLUMNS": "100",
            "LINES": "30",
        }
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), "it", mode],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            env=environment,
            start_new_session=True,
        )
        os.close(inside)

    def type(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def read_until(self, text: str) -> str:
        """EIO where it does not come before the end."""
        shown = ""
        while text not in shown:
            shown += os.read(self._screen, 1 << 16).decode(errors="replace")
        return shown

    def end(self) -> int:
        """The exit code; what is still printed is read."""
        try:
            while os.read(self._screen, 1 << 16):
                pass
        except OSError:  # the last process has closed it
            pass
        return self.process.wait(timeout=60)

    def close(self) -> None:
        os.close(self._screen)
        self.process.kill()
        self.process.wait()
        for record in self.registry.running():
            stop_server(record, now=True)


Open = Callable[[str], Terminal]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Open]:
    opened: list[Terminal] = []

    def open_terminal(mode: str) -> Terminal:
        opened.append(Terminal(tmp_path / "state", mode))
        return opened[-1]

    yield open_terminal
    for one in opened:
        one.close()


def test_a_user_who_leaves_a_busy_server_can_detach(terminal: Open) -> None:
    serving = terminal("busy")
    serving.read_until("· busy")
    serving.type("q")
    serving.read_until("1 request is in the server.")
    serving.type("d")
    shown = serving.read_until("stoker stop it")
    assert "it runs in the background" in shown
    assert serving.process.wait(timeout=60) == 0

    (record,) = serving.registry.running()
    assert record.is_supervised()
    assert record.is_running()
    assert record.state in READY_STATES
    assert os.getsid(record.supervisor_pid) != os.getsid(0)
    assert stop_server(record, now=False).is_clean
    assert serving.registry.all() == ()


def test_a_user_who_leaves_a_busy_server_can_stay_and_then_stop_it(terminal: Open) -> None:
    serving = terminal("busy")
    serving.read_until("· busy")
    serving.type("q")
    serving.read_until("1 request is in the server.")
    serving.type("\r")
    serving.read_until("KV cache")
    serving.type("\x03")
    serving.read_until("1 request is in the server.")
    serving.type("s")
    shown = serving.read_until("stopped: ")
    assert "stopping the server" in shown
    assert serving.end() == 0
    assert serving.registry.all() == ()


def test_an_idle_server_is_stopped_without_a_question(terminal: Open) -> None:
    serving = terminal("idle")
    serving.read_until("· idle")
    serving.type("q")
    serving.read_until("stopped: ")
    assert serving.end() == 0
