"""A signal ends every screen as its user would: the terminal is as it was before."""

from __future__ import annotations

import os
import signal
import termios
from pathlib import Path

import pytest

from tests.fakes.terminal import Terminal


@pytest.mark.parametrize("screen", ["top", "fleet", "log"])
def test_terminal_is_restored_at_sigterm(screen: str, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("INFO 10-03 12:00:00 [core.py:123] a line to look at\n")
    words = {
        "top": ("top", "--mock"),
        "fleet": ("top", "http://127.0.0.1:9", "http://127.0.0.1:10"),
        "log": ("logs", "--tui", str(log)),
    }[screen]
    terminal = Terminal(*words)
    terminal.wait_for("\x1b[?1049h")
    terminal.wait_for({"top": "replay", "fleet": "servers", "log": "configuration"}[screen])
    os.kill(terminal.process.pid, signal.SIGTERM)
    terminal.wait_for("\x1b[?1049l")
    modes = termios.tcgetattr(terminal.fd)[3]
    assert terminal.close() == 128 + signal.SIGTERM
    assert (modes ^ terminal.modes_before) & (termios.ECHO | termios.ICANON) == 0


@pytest.mark.parametrize("screen", ["top", "log"])
def test_a_screen_ends_with_its_terminal(screen: str, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("INFO 10-03 12:00:00 [core.py:123] a line to look at\n")
    words = ("top", "--mock") if screen == "top" else ("logs", "--tui", str(log))
    terminal = Terminal(*words)
    terminal.wait_for("\x1b[?1049h")
    terminal.wait_for("replay" if screen == "top" else "configuration")
    os.close(terminal.fd)
    assert terminal.process.wait(timeout=60) in (-signal.SIGHUP, 128 + signal.SIGHUP)


def test_a_terminal_that_is_closed_takes_its_screen_with_it() -> None:
    terminal = Terminal("top", "--mock")
    terminal.wait_for("replay")
    os.close(terminal.fd)
    assert terminal.process.wait(60) != 0
