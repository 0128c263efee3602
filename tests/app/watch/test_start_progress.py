from __future__ import annotations

import pytest

from app.watch.start_progress import ProgressClock, bar_in_units
from logparse import Event, PhaseStarted, ProblemFound, ProgressMade
from logparse.records import Problem


def test_phases_and_bars_that_move_are_progress_and_nothing_else() -> None:
    now = [0.0]
    clock = ProgressClock(lambda: now[0])

    def age_after(*events: Event) -> float:
        now[0] += 10.0
        clock.note(events)
        return clock.age_s

    problem = Problem("G1", "t", "w", (), "k", 1, None, True)
    assert age_after() == 10.0
    assert age_after(PhaseStarted(1, "serving", None)) == 0.0
    assert age_after(ProgressMade(2, "shards", 1, 4)) == 0.0
    assert age_after(ProgressMade(3, "shards", 1, 4)) == 10.0, "it stands still"
    assert age_after(ProblemFound(4, problem)) == 20.0
    assert age_after(ProgressMade(5, "shards", 2, 4)) == 0.0


@pytest.mark.parametrize(
    ("line", "bar"),
    [
        (
            "model.safetensors:  45%|####5     | 1.2G/2.6G [00:01<00:02, 700MB/s]",
            ("model.safetensors", 45),
        ),
        ("a:   1%| | 1M/2G\ra:   2%| | 2M/2G", ("a", 2)),
        ("100%|##########| 12.0/12.0 [00:00<00:00]", ("", 100)),
        ("KV cache usage: 45% | waiting", None),
        ("nothing", None),
    ],
)
def test_bars_whose_numbers_carry_units(line: str, bar: tuple[str, int] | None) -> None:
    found = bar_in_units(line, 7)

    assert (None if found is None else (found.text, found.done)) == bar
    assert found is None or (found.total, found.line_number) == (100, 7)
