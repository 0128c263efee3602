"""Makes the pilot wait for the app, however busy the machine is."""

from __future__ import annotations

import pytest

from tests.tui.scripted import loop_is_idle


@pytest.fixture(autouse=True)
def pilot_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys and pauses end when the app has nothing left to do."""
    monkeypatch.setattr("textual.app.wait_for_idle", loop_is_idle)
    monkeypatch.setattr("textual.pilot.wait_for_idle", loop_is_idle)
