"""What stands still is found even where the kernel hides processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from engine.worker.standstill import ProcessLook, StandstillWatch
from tests.fakes.hidden_children import hide_children
from tests.waiting import wait_for


def test_a_sleeper_is_found_where_its_children_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_children(monkeypatch)
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    watch = StandstillWatch(sleeping_looks=2)
    try:
        wait_for(lambda: watch.look({7: ProcessLook.at(sleeper.pid, (1,))}) == [7])
    finally:
        sleeper.kill()
        sleeper.wait()
