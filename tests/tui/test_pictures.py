"""Stored pictures of the dashboard and the log view: every state, three sizes, every look."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.screen import Screen

import tui.app
from app.client.errors import Unreachable
from app.client.metrics.histograms import Histogram
from app.client.metrics.sample import MetricsSample
from app.client.watch.host import GpuHolder, GpuUse, HostSample, ProcessUse
from tests.places import DATA
from tests.tui.engine_script import ScriptedDebug, rank, sample_of, with_ranks
from tests.tui.picture import check_picture
from tests.tui.scripted import URL, ScriptedSource, screen_text, settled, until
from tui.app import WatchApp
from tui.log_app import LogApp
from tui.messages import Disconnected, LogLinesArrived, SampleArrived
from tui.screens.dashboard import DashboardScreen
from tui.theme import Appearance

SIZES = [(80, 24), (120, 40), (200, 60)]
NOW_S = 1000.0
OWN_LOG = DATA / "own_engine_start.log"
NUM_LINES = len(OWN_LOG.read_text(encoding="utf-8").splitlines())
GPU = GpuUse(
    index=0,
    name="NVIDIA H100",
    utilisation=0.87,
    memory_used_bytes=70 << 30,
    memory_total_bytes=80 << 30,
    power_w=612.4,
    power_limit_w=700.0,
    temperature_c=71,
    throttle="power cap",
    server_bytes=69 << 30,
    processes=(GpuHolder(7, 69 << 30),),
)
HOST = HostSample(
    time_s=NOW_S,
    processes=(
        ProcessUse(
            pid=7,
            name="python",
            role="APIServer",
            cpu_share=1.04,
            rss_bytes=3 << 30,
            num_threads=41,
        ),
        ProcessUse(
            pid=9,
            name="python",
            role="EngineCore",
            cpu_share=None,
            rss_bytes=1 << 29,
            num_threads=4,
        ),
    ),
    gpus=(GPU,),
    cpu_share=0.25,
    num_cores=16,
    memory_used_bytes=20 << 30,
    memory_total_bytes=128 << 30,
)


class OneScreen(WatchApp):
    """A dashboard whose clocks stand still."""

    CSS_PATH = str(Path(tui.app.__file__).with_name("app.tcss"))

    def __init__(self, debug: ScriptedDebug | None = None, *, theme: str = "dark",
                 is_ascii: bool = False, log_path: Path | None = None) -> None:  # fmt: skip
        super().__init__(Appearance(theme, is_ascii))
        self.dashboard = DashboardScreen(
            URL,
            ScriptedSource(),
            log_path=log_path,
            debug_source=debug,
            clock=lambda: NOW_S,
            wall_clock=lambda: 100_000.0,
            read_host=lambda: HOST,
        )

    def first_screen(self) -> Screen[None]:
        return self.dashboard


def histogram(n: int) -> Histogram:
    return Histogram((0.1, 0.5, 1.0, math.inf), (n * 0.25, n * 0.9, n, n), n * 0.3)


def sample(second: int, *, is_busy: bool) -> MetricsSample:
    """One second of a steady load, or of a server that has done with it."""
    work = second if is_busy else 30
    return MetricsSample(
        time_s=NOW_S - 30 + second,
        engine="stoker",
        model="smollm2-135m",
        running=8 if is_busy else 0,
        waiting=3 + second % 4 if is_busy else 0,
        kv_usage=0.3 + 0.02 * second if is_busy else 0.0,
        kv_blocks_total=1001,
        kv_blocks_used=300 + 20 * second if is_busy else 0,
        kv_cached_share=0.5,
        block_size=16,
        kv_capacity_tokens=16_000,
        max_concurrency=3.91,
        preemptions=2,
        prefix_queries=100.0 * work,
        prefix_hits=25.0 * work,
        prefix_hit_rate=0.25,
        prompt_tokens=500.0 * work,
        generation_tokens=100.0 * work + 5.0 * work * work,
        finished=4.0 * work,
        ttft=histogram(4 * work),
        itl=histogram(200 * work),
        queue=histogram(4 * work),
        e2e=histogram(4 * work),
        step_tokens=Histogram((64.0, math.inf), (10.0 * work, 10.0 * work), 250.0 * work),
        start_time_s=100_000.0 - 7384,
    )


def feed(app: OneScreen, *, is_busy: bool) -> None:
    for second in range(31):
        app.dashboard.on_sample_arrived(SampleArrived(sample(second, is_busy=is_busy)))


def look_idle(app: OneScreen) -> None:
    feed(app, is_busy=False)


def look_busy(app: OneScreen) -> None:
    feed(app, is_busy=True)


def look_starting(app: OneScreen) -> None:
    lines = OWN_LOG.read_text(encoding="utf-8").splitlines()
    cut = next(i for i, line in enumerate(lines) if "KV cache memory" in line)
    app.dashboard.on_log_lines_arrived(LogLinesArrived(lines[:cut]))
    bare = MetricsSample(NOW_S, "stoker")
    app.dashboard.on_sample_arrived(SampleArrived(bare))
    app.dashboard._tick()


def look_disconnected(app: OneScreen) -> None:
    feed(app, is_busy=True)
    error = Unreachable(f"no server answers at {URL} (connection refused)")
    app.dashboard.on_disconnected(Disconnected(error, 2, 4.0))


LOOKS: dict[str, Callable[[OneScreen], None]] = {
    "idle": look_idle,
    "busy": look_busy,
    "starting": look_starting,
    "disconnected": look_disconnected,
}


async def check(app: OneScreen, look: str, size: tuple[int, int], name: str, *keys: str) -> None:
    async with app.run_test(size=size) as pilot:
        await settled(pilot)
        LOOKS[look](app)
        for key in keys:
            await pilot.press(key)
        await check_picture(pilot, name)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("look", LOOKS)
async def test_states(look: str, size: tuple[int, int]) -> None:
    await check(OneScreen(), look, size, f"dashboard-{look}-{size[0]}x{size[1]}")


@pytest.mark.parametrize("look", ["busy", "disconnected"])
async def test_without_colour(look: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    await check(OneScreen(), look, (80, 24), f"dashboard-{look}-no-color")


@pytest.mark.parametrize("theme", ["light", "16"])
async def test_themes(theme: str) -> None:
    await check(OneScreen(theme=theme), "busy", (80, 24), f"dashboard-busy-{theme}")


async def test_ascii() -> None:
    app = OneScreen(is_ascii=True)
    await check(app, "busy", (80, 24), "dashboard-busy-ascii")
    stored = (Path(__file__).parent / "snapshots" / "dashboard-busy-ascii.txt").read_text()
    assert stored.isascii()


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_engine_page(size: tuple[int, int]) -> None:
    requests = tuple((f"req-{number}", 20 + 10 * number, 9 - number) for number in range(6))
    found = sample_of(*requests, num_steps=5, seqs=3)
    step = dataclasses.replace(found.scheduler, last_step_age_s=0.1)
    debug = ScriptedDebug(dataclasses.replace(found, scheduler=step, time_s=NOW_S))
    app = OneScreen(debug)
    async with app.run_test(size=size) as pilot:
        await settled(pilot)
        look_busy(app)
        await pilot.press("2")
        await until(pilot, lambda: "req-4" in screen_text(app))
        await check_picture(pilot, f"engine-{size[0]}x{size[1]}")


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (120, 40)])
async def test_engine_page_of_ranks(size: tuple[int, int]) -> None:
    found = with_ranks(
        sample_of(("req-0", 20, 9), ("req-1", 30, 8), num_steps=5),
        rank("Worker_PP0_TP0", 9.2, 0.4),
        rank("Worker_PP0_TP1", 9.2, 2.1),
        rank("Worker_PP1_TP0", 8.7, 1.1),
        rank("Worker_PP1_TP1", 8.7, 1.4),
    )
    step = dataclasses.replace(found.scheduler, last_step_age_s=0.1)
    debug = ScriptedDebug(dataclasses.replace(found, scheduler=step, time_s=NOW_S))
    app = OneScreen(debug)
    async with app.run_test(size=size) as pilot:
        await settled(pilot)
        look_busy(app)
        await pilot.press("2")
        await until(pilot, lambda: "20/20" in screen_text(app))
        await check_picture(pilot, f"engine-ranks-{size[0]}x{size[1]}")


async def test_machine_page() -> None:
    await check(OneScreen(), "busy", (80, 24), "machine-80x24", "3")


async def test_help_of_a_panel() -> None:
    await check(OneScreen(), "idle", (80, 24), "help-80x24", "tab", "question_mark")


@pytest.mark.parametrize(
    ("size", "look"), [*((size, "") for size in SIZES), ((80, 24), "no-color")]
)
async def test_log_view(size: tuple[int, int], look: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if look:
        monkeypatch.setenv("NO_COLOR", "1")
    app = LogApp(OWN_LOG, "own_engine_start.log")
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: "serving" in screen_text(app))
        await until(
            pilot, lambda: app.index.num_lines == NUM_LINES and "reading" not in screen_text(app)
        )
        await pilot.press("g")
        await check_picture(pilot, f"logs-{look or f'{size[0]}x{size[1]}'}")
