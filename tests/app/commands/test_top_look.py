"""`stoker top --theme --ascii` sets what every screen of the process reads."""

from __future__ import annotations

import os

import pytest

from app.cli import run


def test_flags_reach_the_screens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STOKER_THEME", "")
    monkeypatch.setenv("STOKER_ASCII", "")
    assert run(["top", "http://127.0.0.1:9", "--once", "--theme", "light", "--ascii"]) == 4
    assert (os.environ["STOKER_THEME"], os.environ["STOKER_ASCII"]) == ("light", "1")


def test_unknown_theme(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["top", "--theme", "purple"]) == 2
    assert "use dark, light, 16" in capsys.readouterr().err
