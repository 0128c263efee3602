from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest
from textual.command import CommandPalette
from textual.widget import Widget

from app.client.errors import Unreachable, status_error
from app.client.metrics.sample import EngineLoad, MetricsSample, read_sample
from app.client.server import MetricsSource
from tests.client.local_server import Answer, Call, LocalServer
from tests.places import DATA, SHARED
from tests.tui.scripted import URL, ScriptedSource, screen_text, settled, until, until_right
from tui.app import DETACH, QUIT, SERVER_GONE, DashboardApp
from tui.screens.confirm import LeaveScreen
from tui.screens.help import HelpScreen
from tui.screens.logs import WholeLog
from tui.state.history import MetricHistory
from tui.widgets.logs.log_pane import LogPane
from tui.widgets.panel import Panel

REAL = SHARED / "metrics" / "vllm-0.30.0-busy.txt"
OWN_LOG = DATA / "own_engine_start.log"
FAST_S = 0.001
GONE = Unreachable(f"no server answers at {URL} (connection refused)")


@pytest.fixture
def source() -> ScriptedSource:
    return ScriptedSource()


@pytest.fixture
def app(source: ScriptedSource) -> DashboardApp:
    return DashboardApp(URL, source, interval_s=FAST_S)


def sample(**values: object) -> MetricsSample:
    base = MetricsSample(time.monotonic(), "vllm", model="smol")
    return dataclasses.replace(base, **values)  # type: ignore[arg-type]


async def test_before_the_first_sample_nothing_is_known(app: DashboardApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
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
        await settled(pilot)
        text = screen_text(app)
    assert "smol Stoker" in text
    assert "live" in text
    assert "running 31 │" in text
    assert "waiting ▲ 5 │" in text
    assert "25.0 %" in text
    assert "250 / 1,001 blocks" in text
    assert "50.0 %" in text
    assert "preemptions ✖ 17 (+17) │" in text
    assert "peak 25.0 % in 1 min" in text
    # Never reported: prompt tokens and prefix hits.
    assert "this server does" in text
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
        await settled(pilot)
        text = screen_text(app)
    assert "smollm2 vLLM" in text
    assert "0 / 727 blocks" in text
    assert "128 tokens per block" in text
    assert "free 727 blocks · 0 of 93,184 tokens" in text
    assert "since server start" in text
    assert "finished 135 │" in text
    first_token = next(line for line in text.splitlines() if "first token" in line)
    assert "~922 ms" in first_token
    assert "~2.16 s" in first_token
    assert "~2.47 s" in first_token
    assert " 135 " in first_token
    assert ("(750,1000]" in first_token) == (size[0] == 120)
    cached = next(line for line in text.splitlines() if "reusable" in line)
    assert "n/a: vLLM does not export how many free blocks still hold a prefix" in cached
    queue = next(line for line in text.splitlines() if "in queue" in line)
    assert " 135 " in queue


async def test_disconnect_keeps_the_values_and_reconnect_picks_up(
    app: DashboardApp, source: ScriptedSource
) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        source.then(sample(running=12), GONE)
        await until(pilot, lambda: "disconnected, retrying" in screen_text(app))
        await settled(pilot)
        text = screen_text(app)
        assert "connection refused" in text
        assert " old" in text
        assert "running 12 │" in text
        assert app.dashboard.query_one("#body").has_class("-stale")
        source.then(sample(running=13))
        app.dashboard.poller.poll_now()
        await until(pilot, lambda: "running 13 │" in screen_text(app))
        await settled(pilot)
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
        await settled(pilot)
        text = screen_text(app)
        assert "paused" in text
        assert "running 1 │" in text
        await pilot.press(key)
        await until(pilot, lambda: "running 2 │" in screen_text(app))


@pytest.mark.parametrize(
    ("back", "forward"), [("left_square_bracket", "right_square_bracket"), ("left", "right")]
)
async def test_steps_through_the_past(
    app: DashboardApp, source: ScriptedSource, back: str, forward: str
) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        source.then(sample(running=1), sample(running=2), sample(running=3))
        await until(pilot, lambda: "running 3 │" in screen_text(app))
        await pilot.press(back)
        await until(pilot, lambda: "running 2 │" in screen_text(app))
        await until(pilot, lambda: "paused" in screen_text(app))
        await until(pilot, lambda: "1 back" in screen_text(app))
        source.then(sample(running=4))
        await until(pilot, lambda: "2 back" in screen_text(app))  # the picture stays
        await pilot.press(back, back)
        await until(pilot, lambda: "running 1 │" in screen_text(app))
        await pilot.press(forward)
        await until(pilot, lambda: "running 2 │" in screen_text(app))
        await pilot.press("p")
        await until(pilot, lambda: "running 4 │" in screen_text(app))
        await until(pilot, lambda: "live" in screen_text(app))


async def test_windows(app: DashboardApp, source: ScriptedSource) -> None:
    now = time.monotonic()
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        source.then(sample(time_s=now - 200, kv_usage=0.9), sample(time_s=now, kv_usage=0.1))
        await until(pilot, lambda: "peak 10.0 % in 1 min" in screen_text(app))
        for words in ("peak 90.0 % in 5 min", "in 15 min", "in 1 h", "peak 10.0 % in 1 min"):
            await pilot.press("t")
            await until(pilot, lambda words=words: words in screen_text(app))  # type: ignore[misc]


async def test_machine_page_reads_this_machine(app: DashboardApp, source: ScriptedSource) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        source.then(sample(running=1))
        await pilot.press("3")
        await until(pilot, lambda: "of" in screen_text(app) and "cores" in screen_text(app))
        await until(pilot, lambda: "processes n/a: no process of this user" in screen_text(app))
        await pilot.press("escape")
        await until(pilot, lambda: "Latency" in screen_text(app))


async def test_picture_is_saved(
    app: DashboardApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("P")
        await until(pilot, lambda: "Saved" in screen_text(app))
    (saved,) = tmp_path.glob("*.svg")
    assert "KV" in saved.read_text(encoding="utf-8")


async def test_tab_reaches_each_panel_and_the_help_is_its_own(app: DashboardApp) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        titles = []
        for _ in app.dashboard.query(Panel):
            await pilot.press("tab")
            if not isinstance(app.focused, Panel) or str(app.focused.border_title) in titles:
                break
            titles.append(str(app.focused.border_title))
            await pilot.press("question_mark")
            await until(pilot, lambda: isinstance(app.screen, HelpScreen))
            await until(pilot, lambda: f"Help: {titles[-1]}" in screen_text(app))
            await pilot.press("escape")
            await until(pilot, lambda: app.screen is app.dashboard)
    assert titles[:2] == ["KV cache", "Requests"]
    assert {"Latency", "Scheduler", "Limit", "Machine", "Requests/s"} <= set(titles)


async def test_start_is_followed_and_gives_way_to_the_numbers(
    source: ScriptedSource, tmp_path: Path
) -> None:
    lines = OWN_LOG.read_text(encoding="utf-8").splitlines(keepends=True)
    log = tmp_path / "server.log"
    log.write_text("".join(lines[:8]))
    app = DashboardApp(URL, source, interval_s=FAST_S, log_path=log)
    async with app.run_test(size=(120, 40)) as pilot:
        source.then(GONE)
        await until(pilot, lambda: "○ starting · engine start" in screen_text(app))
        await until(pilot, lambda: "✓ configuration" in screen_text(app))
        assert "disconnected" not in screen_text(app)
        with log.open("a") as file:
            file.write("".join(lines[8:]))
        source.then(sample(running=0, waiting=0))
        await until(pilot, lambda: "● live · idle" in screen_text(app))
        await until(pilot, lambda: "KV cache" in screen_text(app))
        with log.open("a") as file:
            file.write("INFO 10-03 12:00:09 [launch.py:1] [shutdown] API server: draining\n")
        await until(pilot, lambda: "live · draining" in screen_text(app))


async def test_whole_log_above_the_dashboard(source: ScriptedSource) -> None:
    app = DashboardApp(URL, source, interval_s=FAST_S, log_path=OWN_LOG)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("L")
        await until(pilot, lambda: isinstance(app.screen, WholeLog))
        await until(pilot, lambda: "Available KV cache memory" in screen_text(app))
        await pilot.press("question_mark")
        await until(pilot, lambda: "back to the dashboard" in screen_text(app))
        await pilot.press("escape", "q")
        await until(pilot, lambda: app.screen is app.dashboard)
    assert app.return_value is None


async def test_version_is_asked_once_of_a_server_that_answers(source: ScriptedSource) -> None:
    asked: list[int] = []

    def find_version() -> str | None:
        asked.append(1)
        return "0.30.0"

    app = DashboardApp(URL, source, interval_s=FAST_S, find_version=find_version)
    async with app.run_test(size=(80, 24)) as pilot:
        source.then(GONE)
        await until(pilot, lambda: "disconnected" in screen_text(app))
        assert asked == []
        source.then(sample(running=1), sample(running=2))
        app.dashboard.poller.poll_now()
        await until(pilot, lambda: "smol vLLM 0.30.0" in screen_text(app))
        await until(pilot, lambda: "running 2 │" in screen_text(app))
    assert asked == [1]


async def test_start_without_a_log(app: DashboardApp, source: ScriptedSource) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        source.then(status_error(f"{URL}/metrics", 503, "Loading model"))
        await until(pilot, lambda: "○ starting" in screen_text(app))
        await until(pilot, lambda: "tell the phases" in screen_text(app))


@pytest.mark.parametrize("key", ["q", "ctrl+c", "f10"])
async def test_quitting_keys(app: DashboardApp, source: ScriptedSource, key: str) -> None:
    async with app.run_test() as pilot:
        await pilot.press(key)
        await settled(pilot)
    assert app.return_value == QUIT
    assert source.is_closed


async def test_ctrl_c_quits_from_help_too(app: DashboardApp) -> None:
    async with app.run_test() as pilot:
        await pilot.press("f1", "ctrl+c")
        await settled(pilot)
    assert app.return_value == QUIT


@pytest.mark.parametrize("key", ["question_mark", "f1", "h"])
async def test_help_lists_every_key_and_closes(app: DashboardApp, key: str) -> None:
    async with app.run_test(size=(80, 60)) as pilot:
        await pilot.press(key)
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        await settled(pilot)
        text = screen_text(app)
        keys = ("p, Space", "+, =", "r, F5", "q, F10", "?, F1, h", "Ctrl-P", "[, Left", "], Right")
        for words in (*keys, "t plots", "P save", "prefix cache"):
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
        await settled(pilot)
        commands = {c.title: c for c in app.get_system_commands(app.screen)}
        assert {"Pause", "Rate", "Slower", "Refresh", "Log", "Help", "Quit"} <= set(commands)
        assert {"Step back", "Window", "Machine", "Picture"} <= set(commands)
        assert "key p" in commands["Pause"].help


@pytest.mark.parametrize("key", ["colon", "ctrl+p"])
async def test_palette_opens(app: DashboardApp, key: str) -> None:
    async with app.run_test() as pilot:
        await pilot.press(key)
        await until(pilot, lambda: isinstance(app.screen, CommandPalette))


async def test_server_process_gone_ends_the_dashboard(source: ScriptedSource) -> None:
    alive = [True]
    app = DashboardApp(URL, source, server_alive=lambda: alive[0])
    async with app.run_test() as pilot:
        await settled(pilot)
        alive[0] = False
        await until(pilot, lambda: app.return_value is not None)
    assert app.return_value == SERVER_GONE


async def test_log_pane_follows_and_is_toggled(source: ScriptedSource, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("\x1b[32mINFO\x1b[0m one\nERROR two\n")
    app = DashboardApp(URL, source, log_path=log)
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        assert not app.dashboard.query_one(LogPane).display
        await pilot.press("l")
        await until(pilot, lambda: "ERROR two" in screen_text(app))
        await until(pilot, lambda: "one" in screen_text(app))
        with log.open("a") as file:
            file.write("INFO three\n")
        await until(pilot, lambda: "three" in screen_text(app))
        await until_right(pilot, lambda: cut_off(app))
        await pilot.press("l")
        await until(pilot, lambda: "three" not in screen_text(app))


async def test_log_pane_shows_what_matters(source: ScriptedSource, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("INFO 10-03 12:00:00 [a.py:1] begin\n")
    app = DashboardApp(URL, source, log_path=log)
    access = '(APIServer pid=7) INFO:     127.0.0.1:4 - "GET /metrics HTTP/1.1" {}\n'
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: "begin" in screen_text(app))
        pane = app.dashboard.query_one(LogPane)
        with log.open("a") as file:
            file.write(access.format("200 OK"))
            file.write("(EngineCore pid=9) ERROR 10-03 12:00:01 [core.py:5] the pool is broken\n")
            file.write("srv  log_server_r: done request: POST /v1/chat 127.0.0.1 200\n")
            for number in range(40):
                file.write(f"INFO 10-03 12:00:02 [a.py:1] later {number}\n")
            file.write(access.format("404 Not Found"))
        await until(pilot, lambda: "404 Not Found" in screen_text(app))
        text = "\n".join(screen_text(app).splitlines()[pane.region.y :])
        assert "200" not in text
        assert "[core.py:5]" not in text
        assert text.index("the pool is broken") < text.index("later 39")
        source.then(sample(running=0, waiting=0))
        head = "✖ log, 1 error: EngineCore the pool is broken"
        await until(pilot, lambda: head in screen_text(app))


async def test_pages_two_and_three_begin_without_the_log(
    source: ScriptedSource, tmp_path: Path
) -> None:
    log = tmp_path / "server.log"
    log.write_text("INFO one\n")
    app = DashboardApp(URL, source, log_path=log)
    async with app.run_test(size=(100, 40)) as pilot:
        pane = app.dashboard.query_one(LogPane)
        await until(pilot, lambda: pane.display)
        await pilot.press("2")
        await until(pilot, lambda: not pane.display)
        await pilot.press("l")
        await until(pilot, lambda: pane.display)
        await pilot.press("3")
        await until(pilot, lambda: not pane.display)
        await pilot.press("2")
        await until(pilot, lambda: pane.display)


async def test_a_full_server_looks_it_without_colours(
    app: DashboardApp, source: ScriptedSource
) -> None:
    full = {"kv_usage": 0.98, "waiting": 22, "running": 4, "preemptions": 15}
    async with app.run_test(size=(80, 24)) as pilot:
        source.then(sample(**{**full, "preemptions": 0}), sample(**full))
        await until(pilot, lambda: "preemptions 15" in screen_text(app))
        text = screen_text(app)
        assert "✖ KV cache 98.0 %" in text
        assert "✖ 98.0 %" in text
        assert "waiting ✖ 22" in " ".join(text.split())
        assert "preemptions ✖ 15 (+15)" in " ".join(text.split())


async def test_a_quiet_server_has_no_sign(app: DashboardApp, source: ScriptedSource) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        source.then(sample(kv_usage=0.2, waiting=0, running=1, preemptions=0))
        await until(pilot, lambda: "compute: 1 run" in screen_text(app))
        assert "✖" not in screen_text(app)
        assert "▲" not in screen_text(app)


async def test_the_fullest_engine_is_named(app: DashboardApp, source: ScriptedSource) -> None:
    engines = (
        EngineLoad("engine 0", running=3, waiting=0, kv_usage=0.42),
        EngineLoad("engine 1", running=5, waiting=1, kv_usage=0.98),
    )
    async with app.run_test(size=(80, 24)) as pilot:
        source.then(sample(kv_usage=0.7, running=8, waiting=1, engines=engines))
        await until(pilot, lambda: "engine 1 ✖ 98.0 %" in screen_text(app))
        assert "engine 0 42.0 %" in screen_text(app)


async def test_what_matters_is_in_sight_on_a_small_terminal(
    app: DashboardApp, source: ScriptedSource
) -> None:
    async with app.run_test(size=(60, 20)) as pilot:
        source.then(sample(kv_usage=0.5, running=2, waiting=0, kv_blocks_total=11))
        await until(pilot, lambda: "compute" in screen_text(app))
        text = screen_text(app)
        for word in ("50.0 %", "running", "waiting", "Latency", "Limit"):
            assert word in text
        await until_right(pilot, lambda: cut_off(app))
        assert screen_text(app).splitlines()[-1].split()[:4] == ["?", "Help", "q", "Quit"]
        await pilot.press("2")
        await until(pilot, lambda: "Sort" in screen_text(app))
        assert screen_text(app).splitlines()[-1].split()[:4] == ["?", "Help", "q", "Quit"]


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
        await until_right(pilot, lambda: cut_off(app))
        for word in ("Pause", "Window", "Engine", "Log", "Quit", "Help"):
            await until(
                pilot,
                lambda word=word: word in screen_text(app).splitlines()[-1],  # type: ignore[misc]
            )


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
            await until(pilot, lambda: "connection refused" in screen_text(app))
            server.start()
            await until(pilot, lambda: "live" in screen_text(app))
    finally:
        server.stop()


def cut_off(app: DashboardApp) -> str:
    """The first widget outside the screen, text that is shortened, or rows below the last one."""
    width, height = app.size
    for widget in app.screen.walk_children(Widget):
        if not all(node.display for node in widget.ancestors_with_self if isinstance(node, Widget)):
            continue
        region = widget.region
        if not region or region.right > width or region.bottom > height:
            return f"{widget} lies at {region} of {width} x {height} cells"
    if "…" in screen_text(app):
        return "a text is shortened"
    hidden = app.dashboard.query_one("#body").max_scroll_y
    return f"{hidden} rows are to be scrolled" if hidden else ""


async def test_a_dashboard_after_a_restart_goes_on_with_the_history(source: ScriptedSource) -> None:
    """`stoker serve --restart` opens one for each start of its server."""
    history = MetricHistory()
    now = time.monotonic()
    history.append(MetricsSample(now - 2, "stoker", running=1, generation_tokens=900))
    app = DashboardApp(URL, source, interval_s=FAST_S, history=history, is_owner=True)
    async with app.run_test(size=(80, 24)) as pilot:
        source.then(MetricsSample(now, "stoker", running=0, generation_tokens=3))
        await until(pilot, lambda: "1 restart seen" in screen_text(app))
    assert history.num_points >= 2


@pytest.mark.parametrize(("running", "is_asked"), [(0.0, False), (2.0, True), (None, True)])
async def test_an_owner_who_leaves_is_asked_unless_the_server_is_idle(
    running: float | None, is_asked: bool, source: ScriptedSource
) -> None:
    app = DashboardApp(URL, source, interval_s=FAST_S, is_owner=True)
    async with app.run_test(size=(80, 24)) as pilot:
        source.then(MetricsSample(time.monotonic(), "vllm", running=running))
        await until(pilot, lambda: app.dashboard.history.num_points > 0)
        await pilot.press("q")
        if is_asked:
            await until(pilot, lambda: isinstance(app.screen, LeaveScreen))
            await pilot.press("d")
        await pilot.pause()
    assert app.return_value == (DETACH if is_asked else QUIT)


@pytest.mark.parametrize("is_owner", [True, False])
async def test_only_an_owner_detaches_and_the_help_says_so(
    is_owner: bool, source: ScriptedSource
) -> None:
    app = DashboardApp(URL, source, interval_s=FAST_S, is_owner=is_owner)
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: "D Detach" in screen_text(app) or not is_owner)
        await pilot.press("question_mark")
        await until(pilot, lambda: "q, F10 quit" in screen_text(app))
        assert (" D leave; the server runs on" in screen_text(app)) is is_owner
        assert screen_text(app).count("every command by name") == 1
        await pilot.press("escape", "D")
        await pilot.pause()
    assert app.return_value == (DETACH if is_owner else None)
