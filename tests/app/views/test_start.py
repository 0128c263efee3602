from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from app.views.progress import ModelProgress
from app.views.start import StartView
from app.watch.start_history import StartTimes
from engine.model_store.progress import StoreProgress
from logparse import FactFound, PhaseFinished, PhaseStarted, ProgressMade


def without_times(text: str) -> list[str]:
    return [re.sub(r"\s+\d+\.\d s", "", line) for line in text.splitlines()]


def test_a_start_is_told_by_phase(capsys: pytest.CaptureFixture[str]) -> None:
    with StartView("starting m") as view:
        view.show((PhaseStarted(1, "configuration", None), PhaseFinished(2, "configuration", None)))
        view.show((PhaseStarted(3, "loading", None), PhaseStarted(4, "serving", None)))
        view.close()

    out, err = capsys.readouterr()
    assert out == ""
    assert without_times(err) == ["starting m", "  configuration", "  loading", "  serving"]


def test_a_phase_that_did_not_end_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    with StartView("starting m") as view:
        view.show((PhaseStarted(1, "configuration", None),))

    assert without_times(capsys.readouterr().err) == ["starting m", "  configuration  not finished"]


def test_for_whom_a_start_waits_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with StartView("starting m") as view:
        view.show((PhaseStarted(1, "configuration", None), FactFound(2, "waits_for_pid", 4711)))
        view.show((PhaseStarted(3, "loading", None),))
        view.close()

    assert without_times(capsys.readouterr().err) == [
        "starting m",
        "  waits for process 4711, which measures memory",
        "  configuration",
        "  loading",
    ]


def test_what_earlier_starts_took_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with StartView("starting m", StartTimes(61.25, {"loading": 3.0})) as view:
        view.show((PhaseStarted(1, "loading", None),))
        view.close()

    assert view.phase_seconds().keys() == {"loading"}
    assert capsys.readouterr().err.startswith("starting m (usually 61 s)\n")


def test_a_terminal_shows_the_bar_or_the_usual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = io.StringIO()
    console = Console(file=drawn, width=100, force_terminal=True, color_system=None)
    monkeypatch.setattr("app.views.start.talk_console", lambda: console)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with StartView("starting m", StartTimes(9.0, {"loading": 3.0})) as view:
        view.show((PhaseStarted(1, "loading", None),))
        console.print(view._table())
        before = drawn.getvalue()
        view.show((ProgressMade(2, "shards", 3, 4),))
        console.print(view._table())
    after = drawn.getvalue()[len(before) :]

    assert "usually 3.0 s" in before
    assert "3/4 shards" in after
    assert after.count("\N{BOX DRAWINGS HEAVY HORIZONTAL}") > 10
    assert "usually 3.0 s" not in after.partition("3/4")[2]


def test_making_a_model_is_told_by_step(capsys: pytest.CaptureFixture[str]) -> None:
    with ModelProgress("tiny") as show:
        for done in (0, 5 << 20, 10 << 20):
            show(StoreProgress("download", done, 10 << 20))
        show(StoreProgress("convert", 1, 2, "tensors"))

    out, err = capsys.readouterr()
    assert out == ""
    assert err == "tiny: downloading (10.0 MiB)\ntiny: converting to bf16\n"
