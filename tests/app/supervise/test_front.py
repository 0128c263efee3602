"""A server in a terminal of its own: the terminal goes away, the user leaves or detaches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.commands.selftest import show_dashboard
from app.registry.server_registry import ServerRegistry, open_registry
from app.registry.states import READY_STATES
from app.selftest.run import Trial, fake_spec, run_trial
from app.selftest.trials import terminal_trials
from app.supervise.stopping import stop_server
from tests.fakes import serve_fake
from tests.fakes.terminal import Terminal


@pytest.mark.parametrize("trial", terminal_trials(show_dashboard), ids=lambda trial: trial.title)
def test_nothing_hangs_on_a_terminal(trial: Trial) -> None:
    assert run_trial(trial, fake_spec).problem is None


Open = Callable[[str], Terminal]


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerRegistry]:
    monkeypatch.setenv("STOKER_STATE_DIR", str(tmp_path / "state"))
    found = open_registry()
    yield found
    for record in found.running():
        stop_server(record, now=True)


@pytest.fixture
def serve(registry: ServerRegistry) -> Iterator[Open]:
    """`stoker serve` in a terminal, on the fake engine."""
    opened: list[Terminal] = []

    def open_terminal(mode: str) -> Terminal:
        opened.append(
            Terminal("terminal", "it", mode, columns=100, rows=30, module=serve_fake.__name__)
        )
        return opened[-1]

    yield open_terminal
    for one in opened:
        one.process.kill()
        one.close()


def test_a_user_who_leaves_a_busy_server_can_detach(serve: Open, registry: ServerRegistry) -> None:
    terminal = serve("busy")
    terminal.wait_for("· busy")
    terminal.type("q")
    terminal.wait_for("1 request is in the server.")
    terminal.type("d")
    terminal.wait_for("it runs in the background")
    assert terminal.wait_for_end() == 0

    (record,) = registry.running()
    assert record.is_supervised()
    assert record.is_running()
    assert record.state in READY_STATES
    assert os.getsid(record.supervisor_pid) != os.getsid(0)
    assert stop_server(record, now=False).is_clean
    assert registry.all() == ()


def test_a_user_who_leaves_a_busy_server_can_stay_and_then_stop_it(
    serve: Open, registry: ServerRegistry
) -> None:
    terminal = serve("busy")
    terminal.wait_for("· busy")
    terminal.type("q")
    terminal.wait_for("1 request is in the server.")
    terminal.type("\r")
    terminal.wait_for("KV cache")
    terminal.type("\x03")
    terminal.wait_for("1 request is in the server.")
    terminal.type("s")
    terminal.wait_for("stopping the server")
    assert terminal.wait_for_end() == 0
    assert "stopped: " in terminal.seen
    assert registry.all() == ()


def test_an_idle_server_is_stopped_without_a_question(serve: Open) -> None:
    terminal = serve("idle")
    terminal.wait_for("· idle")
    terminal.type("q")
    assert terminal.wait_for_end() == 0
    assert "stopped: " in terminal.seen
