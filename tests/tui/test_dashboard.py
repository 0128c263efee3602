from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest
from textual.widget import Widget

from app.client.errors import Unreachable
from app.client.metrics import MetricsSample, read_sample
from app.client.server import MetricsSource
from tests.client.local_server import Answer, Call, LocalServer
from tests.tui.scripted import URL, ScriptedSource, screen_text, until
from tui.app import QUIT, SERVER_GONE, DashboardApp
from tui.screens.help import HelpScreen
from tui.widgets.log_pane import LogPane

REAL = Path(__file__).parents[3] / "shared" / "metrics" / "vllm-0.30.0-busy.txt"
FAST_S = 0.001
GONE = Unreachable(f"no server answers at {URL} (connection refused)")


@pytest.fixture
def source() -> ScriptedSource:
    return ScriptedSource()


@pytest.fixture
def app(source: ScriptedSource) -> DashboardApp:
    return DashboardApp(URL, source, interval_s=FAST_S)


def sample(**values: float) -> MetricsSample:
    base = MetricsSample(time.monotonic(), "vllm", model="smol")
    return dataclasses.replace(base, **values)  # type: ignore[arg-type]


async def test_before_the_first_sample_nothing_is_known(app: DashboardApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        text = screen_text(app)
    assert "connecting" in text
    assert "no sample yet" in text
    assert "- / - blocks" in text
    assert "running - │" in text
    assert not set(text.split("KV cache")[1].split("p50")[0]) & set("0123456789")


async def test_samples_in_order_give_values_and_rates(
    app: DashboardApp, source: ScriptedSource
) -> None:
    now = time.monotonic()
    first = MetricsSample(now - 2, "stoker", model="smol", running=4, generation_tokens=100)
    second = dataclasses.replace(
        first,
        time_s=now,
        running=31,
        waiting=5,
        generation_tokens=1300,
        kv_usage=0.25,
        kv_blocks_used=250,
        kv_blocks_total=1001,
        kv_cached_share=0.5,
        preemptions=17,
    )
    async with app.run_test(size=(80, 24)) as pilot:
        source.then(first, second)
        await until(pilot, lambda: "600" in screen_text(app))
        text = screen_text(app)
    assert "smol Stoker" in text
    assert "live" in text
    assert "running 31 │" in text
    assert "waiting 5 │" in text
    assert "25.0 %" in text
    assert "250 / 1,001 blocks" in text
    assert "50.0 %" in text
    assert "preemptions 17 │" in text
    # Never reported: prompt tokens and prefix hits.
    assert "prefix hits - │" in text


@pytest.mark.skipif(not REAL.exists(), reason="the captured metrics are not here")
@pytest.mark.parametrize("size", [(80, 24), (120, 36)])
async def test_real_vllm_numbers(
    app: DashboardApp, source: ScriptedSource, size: tuple[int, int]
) -> None:
    real = read_sample(REAL.read_text(), time.monotonic())
    assert real is not None
    async with app.run_test(size=size) as pilot:
        source.then(real)
        await until(pilot, lambda: "17,145" in screen_text(app))
        text = screen_text(app)
    assert "smollm2 vLLM" in text
    assert "0 / 728 blocks" in text
    assert "128 tokens per block · 93,184 tokens in all" in text
    assert "since server start" in text
    assert "finished 135 │" in text
    first_token = next(line for line in text.splitlines() if "first token" in line)
    assert "~922 ms" in first_token
    assert "~2.16 s" in first_token
    assert "~2.47 s" in first_token
    assert " 135 " in first_token
    assert ("(750,1000]" in first_token) == (size[0] == 120)
    cached = next(line for line in text.splitlines() if "cached" in line)
    assert " - reusable" in cached


async def test_disconnect_keeps_the_values_and_reconnect_picks_up(
    app: DashboardApp, source: ScriptedSource
) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        source.then(sample(running=12), GONE)
        await until(pilot, lambda: "disconnected, retrying" in screen_text(app))
        text = screen_text(app)
        assert "connection refused" in text
        assert " old" in text
        assert "running 12 │" in text
        assert app.dashboard.query_one("#body").has_class("-stale")
        source.then(sample(running=13))
        app.dashboard.poller.poll_now()
        await until(pilot, lambda: "running 13 │" in screen_text(app))
        text = screen_text(app)
        assert "disconnected" not in text
        assert "live" in text
        assert not app.dashboard.query_one("#body").has_class("-stale")


async def test_server_that_was_never_there(app: DashboardApp, source: ScriptedSource) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        source.then(GONE)
        await until(pilot, lambda: "disconnected, retrying · no sample yet" in screen_text(app))


async def test_restart_is_noted(app: DashboardApp, source: ScriptedSource) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        source.then(sample(generation_tokens=500), sample(generation_tokens=20))
        await until(pilot, lambda: "1 restart seen" in screen_text(app))


@pytest.mark.parametrize("key", ["p", "space"])
async def test_pause_freezes_the_picture_not_the_collection(
    app: DashboardApp, source: ScriptedSource, key: str
) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        source.then(sample(running=1))
        await until(pilot, lambda: "running 1 │" in screen_text(app))
        await pilot.press(key)
        source.then(sample(running=2))
        await until(pilot, lambda: source.num_scrapes == 2)
        await pilot.pause()
        text = screen_text(app)
        assert "paused" in text
        assert "running 1 │" in text
        await pilot.press(key)
        await until(pilot, lambda: "running 2 │" in screen_text(app))


@pytest.mark.parametrize("key", ["q", "ctrl+c", "f10"])
async def test_quitting_keys(app: DashboardApp, source: ScriptedSource, key: str) -> None:
    async with app.run_test() as pilot:
        await pilot.press(key)
        await pilot.pause()
    assert app.return_value == QUIT
    assert source.is_closed


async def test_ctrl_c_quits_from_help_too(app: DashboardApp) -> None:
    async with app.run_test() as pilot:
        await pilot.press("f1", "ctrl+c")
        await pilot.pause()
    assert app.return_value == QUIT


@pytest.mark.parametrize("key", ["question_mark", "f1", "h"])
async def test_help_lists_every_key_and_closes(app: DashboardApp, key: str) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(key)
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        await pilot.pause()
        text = screen_text(app)
        for words in ("p, Space", "+, =", "r, F5", "q, F10", "?, F1, h", "Ctrl-P", "prefix cache"):
            assert words in text
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.dashboard)
    assert app.return_value is None


async def test_rate_keys_walk_over_the_intervals(source: ScriptedSource) -> None:
    app = DashboardApp(URL, source, interval_s=1.0)
    async with app.run_test(size=(80, 24)) as pilot:
        for key, text in [("plus", "every 0.5 s"), ("minus", "every 1 s"), ("minus", "every 2 s")]:
            await pilot.press(key)
            await until(pilot, lambda text=text: text in screen_text(app))  # type: ignore[misc]
        for _ in range(9):
            await pilot.press("minus")
        assert app.dashboard.poller.interval_s == 10.0


async def test_refresh_samples_at_once(source: ScriptedSource) -> None:
    app = DashboardApp(URL, source, interval_s=3600)
    async with app.run_test() as pilot:
        source.then(sample(running=1), sample(running=2))
        await until(pilot, lambda: source.num_scrapes == 1)
        await pilot.press("r")
        await until(pilot, lambda: source.num_scrapes == 2)


async def test_palette_offers_the_actions(app: DashboardApp) -> None:
    async with app.run_test() as pilot:
        await pilot.pause()
        commands = {c.title: c for c in app.get_system_commands(app.screen)}
        assert {"Pause", "Rate", "Slower", "Refresh", "Log", "Help", "Quit"} <= set(commands)
        assert "key p" in commands["Pause"].help


async def test_server_process_gone_ends_the_dashboard(source: ScriptedSource) -> None:
    alive = [True]
    app = DashboardApp(URL, source, server_alive=lambda: alive[0])
    async with app.run_test() as pilot:
        await pilot.pause()
        alive[0] = False
        await until(pilot, lambda: app.return_value is not None)
    assert app.return_value == SERVER_GONE


async def test_log_pane_follows_and_is_toggled(source: ScriptedSource, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("\x1b[32mINFO\x1b[0m one\nERROR two\n")
    app = DashboardApp(URL, source, log_path=log)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert not app.dashboard.query_one(LogPane).display
        await pilot.press("l")
        await until(pilot, lambda: "ERROR two" in screen_text(app))
        assert "INFO one" in screen_text(app)
        with log.open("a") as file:
            file.write("INFO three\n")
        await until(pilot, lambda: "INFO three" in screen_text(app))
        assert_nothing_cut_off(app)
        await pilot.press("l")
        await until(pilot, lambda: "INFO three" not in screen_text(app))


async def test_log_key_without_a_log_says_so(app: DashboardApp) -> None:
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("l")
        await until(pilot, lambda: "No log here" in screen_text(app))


@pytest.mark.parametrize("size", [(80, 24), (100, 30), (120, 36), (200, 60)])
async def test_layout_has_room_for_everything(
    app: DashboardApp, source: ScriptedSource, size: tuple[int, int]
) -> None:
    async with app.run_test(size=size) as pilot:
        source.then(sample(running=1))
        await until(pilot, lambda: "running" in screen_text(app))
        await pilot.pause()
        assert_nothing_cut_off(app)
        footer = screen_text(app).splitlines()[-1]
        for word in ("Pause", "Rate", "Refresh", "Log", "Quit", "Help"):
            assert word in footer


async def test_small_terminal_scrolls_instead_of_breaking(
    app: DashboardApp, source: ScriptedSource
) -> None:
    async with app.run_test(size=(50, 12)) as pilot:
        source.then(sample(running=1))
        await until(pilot, lambda: "KV cache" in screen_text(app))


async def test_a_real_server_that_goes_away_and_returns() -> None:
    numbers = iter(range(1000, 100_000, 7))

    def metrics(_call: Call) -> Answer:
        text = f"vllm:num_requests_running 3\nvllm:generation_tokens_total {next(numbers)}\n"
        return Answer([text.encode()])

    server = LocalServer({"/metrics": metrics})
    server.start()
    app = DashboardApp(server.url, MetricsSource(server.url), interval_s=0.01)
    try:
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: "running 3 │" in screen_text(app))
            await until(pilot, lambda: "peak" in screen_text(app))
            server.stop()
            await until(pilot, lambda: "disconnected, retrying" in screen_text(app))
            assert "connection refused" in screen_text(app)
            server.start()
            await until(pilot, lambda: "live" in screen_text(app))
    finally:
        server.stop()


def assert_nothing_cut_off(app: DashboardApp) -> None:
    """Every widget lies inside the screen, nothing is to be scrolled, no text is shortened."""
    width, height = app.size
    for widget in app.screen.walk_children(Widget):
        if not all(node.display for node in widget.ancestors_with_self if isinstance(node, Widget)):
            continue
        region = widget.region
        assert region.width > 0, widget
        assert region.height > 0, widget
        assert region.right <= width, widget
        assert region.bottom <= height, widget
    assert "…" not in screen_text(app)
    body = app.dashboard.query_one("#body")
    assert body.max_scroll_y == 0
