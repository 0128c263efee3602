from __future__ import annotations

from tests.places import DATA
from tui.state.start_progress import StartProgress

LINES = (DATA / "own_engine_start.log").read_text().splitlines()


def test_phases_of_a_log_that_was_there_are_the_logs_own() -> None:
    progress = StartProgress()
    progress.feed(LINES, 50.0)
    assert progress.is_ready
    assert not progress.is_starting
    rows = progress.rows(60.0)
    assert [row.mark for row in rows][:2] == ["✓", "✓"]
    assert rows[0].time == "2 s"
    assert progress.trouble == ""


def test_a_running_phase_is_timed_by_our_clock() -> None:
    progress = StartProgress()
    progress.feed(LINES[:1], 50.0)
    for number, line in enumerate(LINES[1:9]):
        progress.feed([line], 51.0 + number)
    assert progress.is_starting
    running = next(row for row in progress.rows(62.5) if row.mark == "…")
    assert running.name == progress.phase == "engine start and weight loading"
    assert running.time.endswith(".5 s")


def test_a_failed_start_says_why_and_a_new_one_begins_again() -> None:
    progress = StartProgress()
    progress.feed(LINES[:6], 1.0)
    progress.feed(["(APIServer pid=1) ERROR 10-03 12:00:09 [launch.py:9] OSError: [Errno 98] "
                   "error while attempting to bind on address ('127.0.0.1', 8000): address "
                   "already in use"], 2.0)  # fmt: skip
    assert progress.trouble
    assert "starting" not in progress.phase


def test_for_whom_a_start_waits_is_its_detail() -> None:
    progress = StartProgress()
    progress.feed(LINES[:6], 1.0)
    progress.feed(["(EngineCore pid=2) INFO 10-03 12:00:09 [memory_turn.py:42] Waiting for process "
                   "4711, which measures the free RAM; its turn comes first."], 2.0)  # fmt: skip
    running = next(row for row in progress.rows(3.0) if row.mark == "…")
    assert running.detail == "waits for process 4711, which measures memory"


def test_lines_that_tell_no_start() -> None:
    progress = StartProgress()
    progress.feed(["hello", ""], 1.0)
    assert not progress.is_starting
    assert progress.phase == ""


def test_draining_only_after_it_was_ready() -> None:
    progress = StartProgress()
    draining = "INFO 10-03 12:00:30 [x.py:1] [shutdown] API server: draining"
    seen = []
    for lines in (["INFO 10-03 12:00:01 [x.py:1] [shutdown] early"], LINES, [draining], LINES):
        progress.feed(lines, 1.0)
        seen.append(progress.is_draining)
    assert seen == [False, False, True, False]


def test_draining_by_the_word_of_a_server_that_has_only_uvicorn() -> None:
    progress = StartProgress()
    progress.feed([*LINES, "INFO:     Shutting down"], 1.0)
    assert progress.is_draining


def test_an_engine_that_is_gone_does_not_drain() -> None:
    progress = StartProgress()
    gone = "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup"
    progress.feed([*LINES, f"(APIServer pid=1) ERROR 10-03 12:05:00 [client.py:2] {gone}"], 1.0)
    assert not progress.is_draining
