"""NVML is let go whatever the question does, and its errors become the answer that was named."""

from __future__ import annotations

import pytest

from engine.machine.nvml import ask_nvml


class Scripted:
    """Stands in for the module; counts starts and ends."""

    class NVMLError(Exception):
        pass

    def __init__(self, *, starts: bool = True, ends: bool = True) -> None:
        self.starts, self.ends = starts, ends
        self.calls: list[str] = []

    def nvmlInit(self) -> None:
        self.calls.append("start")
        if not self.starts:
            raise self.NVMLError("driver not loaded")

    def nvmlShutdown(self) -> None:
        self.calls.append("end")
        if not self.ends:
            raise self.NVMLError("uninitialized")


def fail(nvml: Scripted) -> str:
    raise nvml.NVMLError("GPU is lost")


def test_an_answer_and_the_two_ways_to_have_none() -> None:
    working, refusing = Scripted(), Scripted(starts=False)

    assert ask_nvml(lambda nvml: "two", "none", working) == "two"
    assert ask_nvml(fail, "none", working) == "none"
    assert ask_nvml(lambda nvml: "two", "none", refusing) == "none"
    assert working.calls == ["start", "end", "start", "end"]
    assert refusing.calls == ["start"]


def test_an_end_that_fails_costs_no_answer_and_other_errors_come_through() -> None:
    broken = Scripted(ends=False)

    assert ask_nvml(lambda nvml: "two", "none", broken) == "two"
    with pytest.raises(ZeroDivisionError):
        ask_nvml(lambda nvml: 1 // 0, 0, broken)
    assert broken.calls == ["start", "end"] * 2


def test_without_the_package_there_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.machine.nvml.import_nvml", lambda: None)

    assert ask_nvml(lambda nvml: "two", "none") == "none"
