from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime

import pytest

from app.client.errors import BadStatus, Unreachable
from app.client.watch.recording import Entry, Recording
from app.client.watch.replay import Replay, ReplayStep, steps


def entry(time_s: float, running: int, server: int = 0) -> Entry:
    lines = (f"vllm:num_requests_running {running}", f"vllm:generation_tokens_total {running * 10}")
    return Entry(time_s=time_s, server=server, lines=lines)


RECORDING = Recording(
    ("one", "two"),
    1.0,
    (
        entry(0.0, 1),
        entry(0.1, 7, server=1),
        entry(1.0, 2),
        Entry(time_s=2.0, error="no server answers"),
        entry(3.0, 3),
    ),
)


async def test_samples_and_errors_come_in_order_with_recorded_times() -> None:
    replay = Replay(RECORDING, speed=1000.0)
    source = replay.source()
    first, second = await source.scrape(), await source.scrape()
    assert [(s.time_s, s.running) for s in (first, second)] == [(0.0, 1), (1.0, 2)]
    assert replay.now_s() == 1.0
    with pytest.raises(Unreachable, match="no server answers"):
        await source.scrape()
    assert (await source.scrape()).running == 3
    assert not replay.is_over
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(source.scrape(), 0.05)
    assert replay.is_over


async def test_a_source_that_is_opened_later_goes_on_where_the_replay_is() -> None:
    replay = Replay(RECORDING, speed=1000.0)
    source = replay.source()
    await source.scrape()
    await source.scrape()
    assert (await replay.source().scrape()).time_s == 1.0  # what is on the screen now
    other = replay.source(1)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(other.scrape(), 0.05)


async def test_the_demo_begins_again_and_time_goes_on() -> None:
    replay = Replay(RECORDING, speed=1000.0, is_looping=True)
    source = replay.source(1)
    found = [await source.scrape() for _ in range(3)]
    assert [sample.time_s for sample in found] == pytest.approx([0.1, 4.1, 8.1])


async def test_nothing_is_shown_before_its_time() -> None:
    now_s = 50.0
    replay = Replay(RECORDING, clock=lambda: now_s)
    source = replay.source()
    await source.scrape()
    pending = asyncio.ensure_future(source.scrape())
    await asyncio.sleep(0.01)
    assert not pending.done()
    pending.cancel()


async def test_a_recording_takes_no_commands_and_may_lack_debug() -> None:
    assert Replay(RECORDING).debug_source() is None
    debug = Entry(time_s=0.0, debug={"scheduler": {}})
    with_debug = Recording(("one",), 1.0, (entry(0.0, 1), debug))
    source = Replay(with_debug).debug_source()
    assert source is not None
    with pytest.raises(BadStatus, match="405"):
        await source.cancel("r1")


def test_steps_give_every_scrape_of_every_server() -> None:
    found = [(s.time_s, s.server, _said(s)) for s in steps(RECORDING)]
    assert found == [
        (0.0, 0, 1),
        (0.1, 1, 7),
        (1.0, 0, 2),
        (2.0, 0, "no server answers"),
        (3.0, 0, 3),
    ]


def _said(step: ReplayStep) -> float | str | None:
    return step.sample.running if step.sample else step.error


async def test_the_position_is_told_with_the_date_where_the_file_has_one() -> None:
    replay = Replay(RECORDING, speed=1000.0)
    source = replay.source()
    await source.scrape()
    await source.scrape()
    assert replay.position_text() == "0:01 of 0:04"
    noon_s = datetime(2026, 10, 3, 12, 0).timestamp()
    dated = Replay(replace(RECORDING, started_at_s=noon_s), speed=1000.0)
    await dated.source().scrape()
    assert dated.position_text() == "0:00 of 0:04 · 2026-10-03 12:00:00"
