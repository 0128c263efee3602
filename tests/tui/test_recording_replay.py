"""The recordings of three engines that come with the tests, on the dashboard."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.client.watch.recording import RecordingWriter, read_recording
from app.client.watch.replay import DEMO, Replay
from app.client.watch.watched import WatchedServer, watch_replay
from tests.places import DATA
from tests.tui.scripted import history_of, screen_text, settled, until
from tui.app import DashboardApp, FleetApp
from tui.widgets.engine.request_table import RequestTable

RECORDINGS = DATA / "recordings"
NAMES = sorted(path.name for path in RECORDINGS.iterdir())
FAST = 1000.0


def dashboard_of(server: WatchedServer, replay: Replay) -> DashboardApp:
    return DashboardApp(
        server.url,
        server.open_source(),
        interval_s=0.01,
        debug_source=server.open_debug(),
        is_read_only=True,
        clock=replay.now_s,
    )


async def last_picture(path: Path, words: str, *keys: str) -> str:
    """The screen at the end of the recording, as soon as it shows these words."""
    replay = Replay(read_recording(path), speed=FAST)
    app = dashboard_of(watch_replay(replay, f"replay of {path.name}")[0], replay)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: replay.is_over)
        await pilot.press(*keys)
        await until(pilot, lambda: words in screen_text(app))
        await settled(pilot)
        return screen_text(app)


@pytest.mark.parametrize("name", NAMES)
async def test_same_bytes_same_picture(name: str) -> None:
    first = await last_picture(RECORDINGS / name, "sample 0.0 s old")
    assert f"replay of {name}" in first
    assert await last_picture(RECORDINGS / name, "sample 0.0 s old") == first


async def test_a_recording_of_our_engine_shows_its_requests_and_blocks() -> None:
    text = await last_picture(RECORDINGS / "stoker.jsonl.gz", "cmpl-", "2")
    assert "6 of 6 run" in text


async def test_a_recording_of_llama_server_shows_its_slots() -> None:
    assert await last_picture(RECORDINGS / "llama-server.jsonl.gz", "Slots", "2")


async def test_a_recording_without_debug_says_why_there_is_no_map() -> None:
    assert await last_picture(RECORDINGS / "vllm-0.30.0.jsonl.gz", "n/a", "2")


async def test_nothing_recorded_can_be_cancelled() -> None:
    replay = Replay(read_recording(RECORDINGS / "stoker.jsonl.gz"), speed=FAST)
    app = dashboard_of(watch_replay(replay, "replay")[0], replay)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: replay.is_over)
        await pilot.press("2")
        await until(pilot, lambda: app.screen.query_one(RequestTable).row_count > 0)
        before = screen_text(app).count("cmpl-")
        await pilot.press("x")
        await pilot.pause(0.1)
        assert screen_text(app).count("cmpl-") == before
        assert "Cancel request" not in screen_text(app)


async def test_the_end_is_said() -> None:
    replay = Replay(read_recording(RECORDINGS / "vllm-0.30.0.jsonl.gz"), speed=FAST)
    app = dashboard_of(watch_replay(replay, "replay")[0], replay)
    app.replay = replay
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await until(pilot, lambda: "The recording ends here." in screen_text(app))


async def test_the_demo_runs_on_and_on() -> None:
    recording = read_recording(DEMO)
    replay = Replay(recording, speed=FAST, is_looping=True)
    app = dashboard_of(watch_replay(replay, "built-in demo")[0], replay)
    length_s = recording.entries[-1].time_s
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: replay.now_s() > 1.5 * length_s)
        await until(pilot, lambda: "built-in demo" in screen_text(app))


async def test_a_fleet_is_recorded_and_replayed_as_one(tmp_path: Path) -> None:
    path = tmp_path / "fleet.jsonl.gz"
    writer = RecordingWriter(path, ["a", "b"], 1.0)
    for step in range(3):
        for server in range(2):
            text = f"vllm:num_requests_running {10 * server + step}\n"
            writer.scraped(server, step + server / 10, text)
    writer.close()
    replay = Replay(read_recording(path), speed=FAST)
    app = FleetApp(watch_replay(replay, "replay"), interval_s=0.01, clock=replay.now_s)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "2/-" in screen_text(app) and "12/-" in screen_text(app))
        shown = history_of(app, 1).snapshot()
        assert shown is not None
        assert [point.sample.running for point in shown.points] == [10, 11, 12]


def test_the_recordings_are_small_and_tell_nothing_of_the_machine() -> None:
    assert NAMES == ["llama-server.jsonl.gz", "stoker.jsonl.gz", "vllm-0.30.0.jsonl.gz"]
    assert sum((RECORDINGS / name).stat().st_size for name in NAMES) < 200_000
    for name in NAMES:
        for entry in read_recording(RECORDINGS / name).entries:
            assert not {"/root", "/home", "/tmp"} & set(entry.metrics.replace('"', " ").split())
