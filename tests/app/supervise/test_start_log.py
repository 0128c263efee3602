"""What the log of one start says of the part that runs."""

from __future__ import annotations

import os
from pathlib import Path

from app.supervise.start_log import StartLog
from tests.places import DATA

LINES = (DATA / "own_engine_start.log").read_text().splitlines()[:6]
WAIT = "(EngineCore pid=2) INFO 10-03 12:00:09 [memory_turn.py:42] Waiting for process {}, which \
measures the free RAM; its turn comes first."


def log_of(folder: Path, *lines: str) -> StartLog:
    written = folder / "written.log"
    written.write_text("\n".join([*LINES, *lines, ""]))
    log = StartLog(folder / "start.log", secrets=(), max_bytes=1 << 20)
    log.drain(written.open("rb", buffering=0))
    return log


def test_a_phase_says_for_which_living_process_it_waits(tmp_path: Path) -> None:
    phase = log_of(tmp_path).running_phase()
    waiting = log_of(tmp_path, WAIT.format(os.getpid()))

    assert phase is not None
    expected = f"{phase}, waiting for process {os.getpid()} to measure memory"
    assert waiting.running_phase() == expected


def test_one_that_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    log = log_of(tmp_path, WAIT.format(4_000_000))

    assert log.running_phase() == log_of(tmp_path).running_phase()
