"""A log that is read while it grows ends with the reading of the whole file, whatever wraps it."""

from __future__ import annotations

import random

import pytest

from logparse import LogParser, ServerReady, parse_lines
from logparse.live import LiveReader
from logparse.reading.restore import LOOKED_AT
from tests.logparse.mutations import wrap
from tests.logparse.whole_logs import LOGS
from tests.logparse.wrappings import WRAPPINGS


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_a_wrapped_log_ends_with_the_reading_of_the_whole_file(wrapping: str) -> None:
    chance = random.Random(wrapping)
    for name, log in LOGS.items():
        lines = WRAPPINGS[wrapping](log)
        whole = parse_lines(lines)
        for share in (0.0, 0.3):  # of the looks at the file that find a line alone
            reader = LiveReader(tells_events=False)
            for line in lines:
                reader.feed(line)
                if chance.random() < share:
                    reader.rest()
            reader.rest()
            assert reader.report() == whole, (name, share)


@pytest.mark.parametrize("wrapping", ["docker compose", "docker's json-file", "glog"])
def test_events_are_told_once(wrapping: str) -> None:
    lines = WRAPPINGS[wrapping](LOGS["ready"])
    reader = LiveReader()
    events = [event for line in lines for event in reader.feed(line)] + list(reader.rest())
    assert len(set(map(repr, events))) == len(events)
    assert [type(event) for event in events].count(ServerReady) == 1
    assert reader.report() == parse_lines(lines)


def test_nothing_is_learnt_behind_the_first_lines() -> None:
    ready = LOGS["ready"]
    lines = [f"node-7 | {line}" for line in ready + 20 * ready[-1:] * LOOKED_AT]
    again_at: list[int] = []
    taken: list[int] = []

    def note(parser: LogParser, num_lines: int) -> None:
        taken.append(num_lines)

    def start_again() -> None:
        again_at.append(sum(taken))
        taken.clear()

    reader = LiveReader(tells_events=False, on_read=note, on_again=start_again)
    for line in lines:
        reader.feed(line)
    assert sum(taken) == len(lines) == reader.num_lines
    assert again_at
    assert max(again_at) <= LOOKED_AT
    assert reader.report() == parse_lines(lines)


def test_a_prefix_that_stands_behind_the_first_lines_alone() -> None:
    log = ["$ docker compose up"] + [f"web-1  | {line}" for line in LOGS["failed"]]
    reader = LiveReader(tells_events=False)
    for line in log:
        reader.feed(line)
    reader.rest()
    assert reader.report() == parse_lines(log)


def test_a_line_that_was_cut_waits_for_its_next_piece() -> None:
    cut = wrap([line for line in LOGS["ready"] if "\r" not in line] * 2, random.Random(4))
    reader = LiveReader(tells_events=False)
    for line in cut:
        reader.feed(line)
    reader.rest()
    assert reader.num_lines == len(cut)
    assert reader.report() == parse_lines(cut)
