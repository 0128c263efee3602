from __future__ import annotations

import re

import pytest

from app.ops.model_store import StoreProgress
from app.progress import ModelProgress
from app.start_view import StartView
from logparse import PhaseFinished, PhaseStarted


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


def test_making_a_model_is_told_by_step(capsys: pytest.CaptureFixture[str]) -> None:
    with ModelProgress("tiny") as show:
        for done in (0, 5 << 20, 10 << 20):
            show(StoreProgress("download", done, 10 << 20))
        show(StoreProgress("convert", 1, 2, "tensors"))

    out, err = capsys.readouterr()
    assert out == ""
    assert err == "tiny: downloading (10.0 MiB)\ntiny: converting to bf16\n"
