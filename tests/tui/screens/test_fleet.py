from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import Callable

import pytest

from app.client.errors import ClientError, Unreachable
from app.client.metrics.histograms import Histogram
from app.client.metrics.sample import EngineLoad, MetricsSample
from app.client.watch.watched import SampleSource, Scraped, WatchedServer, watch_url
from tests.client.local_server import Answer, Call, LocalServer, serving
from tests.tui.scripted import ScriptedSource, history_of, screen_text, settled, until
from tui.app import QUIT, FleetApp
from tui.screens.dashboard import DashboardScreen
from tui.screens.fleet import FleetScreen
from tui.screens.help import HelpScreen
from tui.state.fleet import FleetRow, table_text
from tui.state.history import MetricHistory
from tui.widgets.fleet.fleet_table import FleetTable

GONE = Unreachable("no server answers at http://b (connection refused)")


class Script:
    """A server whose sources, opened one after the other, a test feeds."""

    def __init__(self, name: str, state: str = "") -> None:
        self.opened: list[ScriptedSource] = []
        self.server = WatchedServer(name, f"http://{name}", self.open, state=lambda: state)

    def open(self) -> ScriptedSource:
        self.opened.append(ScriptedSource())
        return self.opened[-1]

    def then(self, *entries: MetricsSample | ClientError) -> None:
        self.opened[-1].then(*entries)


def sample(model: str = "smol", **values: object) -> MetricsSample:
    base = MetricsSample(time.monotonic(), "vllm", model=model)
    return dataclasses.replace(base, **values)  # type: ignore[arg-type]


@pytest.fixture
def scripts() -> list[Script]:
    return [Script("alpha"), Script("beta"), Script("gamma")]


@pytest.fixture
def app(scripts: list[Script]) -> FleetApp:
    return FleetApp([script.server for script in scripts], interval_s=0.001)


def row_of(app: FleetApp, name: str) -> str:
    """What is said of this server; nothing before it is drawn."""
    return next((row for row in screen_text(app).splitlines() if row.startswith(name)), "")


def shows(app: FleetApp, name: str, words: str) -> Callable[[], bool]:
    return lambda: words in row_of(app, name)


async def test_each_server_has_its_row(app: FleetApp, scripts: list[Script]) -> None:
    async with app.run_test(size=(120, 24)) as pilot:
        scripts[0].then(sample(running=3, waiting=2, kv_usage=0.5, failed=4, generation_tokens=1))
        scripts[1].then(GONE)
        await until(pilot, shows(app, "alpha", "busy"))
        await until(pilot, shows(app, "beta", "away"))
        await until(pilot, shows(app, "alpha", "3/2 50.0 %"))
        assert row_of(app, "alpha").split(" s ")[0].split()[-2] == "4"
        assert "vLLM smol" in row_of(app, "alpha")
        await until(pilot, shows(app, "gamma", "connecting"))
        assert not set(row_of(app, "gamma")) & set("0123456789")
        scripts[1].then(sample(running=0, waiting=0))
        await until(pilot, shows(app, "beta", "idle"))


async def test_speed_and_latency_come_from_two_samples(
    app: FleetApp, scripts: list[Script]
) -> None:
    def observed(n: float) -> Histogram:
        return Histogram((0.5, 1.0, float("inf")), (0.0, n, n), 0.75 * n)

    async with app.run_test(size=(120, 24)) as pilot:
        first = sample(running=1, generation_tokens=100)
        first = dataclasses.replace(first, time_s=first.time_s - 2, ttft=observed(10))
        second = dataclasses.replace(first, time_s=first.time_s + 2, generation_tokens=300)
        scripts[0].then(first, dataclasses.replace(second, ttft=observed(14)))
        await until(pilot, shows(app, "alpha", " 100 ~750ms ~995ms"))


async def test_at_80_columns_the_numbers_fit(app: FleetApp, scripts: list[Script]) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        scripts[0].then(sample(running=128, waiting=100, kv_usage=1.0))
        await until(pilot, shows(app, "alpha", "128/100 100.0 %"))
        assert " age" in screen_text(app).splitlines()[1]
        await until(pilot, lambda: "http://alpha vllm smol" in screen_text(app))


async def test_enter_opens_with_the_history_and_escape_comes_back(
    app: FleetApp, scripts: list[Script]
) -> None:
    async with app.run_test(size=(100, 30)) as pilot:
        scripts[1].then(sample(running=5, kv_usage=0.25))
        await until(pilot, shows(app, "beta", "25.0 %"))
        await pilot.press("j", "enter")
        await until(pilot, lambda: isinstance(app.screen, DashboardScreen))
        await until(pilot, lambda: len(scripts[1].opened) == 2)
        assert scripts[1].opened[0].is_closed  # one connection, one scrape in flight
        scripts[1].then(sample(running=6, kv_usage=0.75))
        await until(pilot, lambda: "75.0 %" in screen_text(app))
        assert history_of(app, 1).num_points == 2  # one history for both
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, FleetScreen))
        await until(pilot, lambda: len(scripts[1].opened) == 3)
        await until(pilot, lambda: scripts[1].opened[1].is_closed)
        assert [len(script.opened) for script in scripts] == [1, 3, 1]
        scripts[1].then(sample(running=7, kv_usage=0.1))
        await until(pilot, shows(app, "beta", "10.0 %"))
        await pilot.press("escape")  # never quits
        await pilot.press("q")
    assert app.return_value == QUIT


async def test_sort_reverse_and_pause(app: FleetApp, scripts: list[Script]) -> None:
    def order() -> list[str]:
        return [line.split()[0] for line in screen_text(app).splitlines()[2:5]]

    async with app.run_test(size=(120, 24)) as pilot:
        for script, running in zip(scripts, (1, 9, 4), strict=True):
            script.then(sample(running=running))
        await until(pilot, lambda: all("busy" in row_of(app, s.server.name) for s in scripts))
        assert order() == ["alpha", "beta", "gamma"]
        await pilot.press("s", "s", "s")
        await until(pilot, lambda: order() == ["beta", "gamma", "alpha"])
        await until(pilot, lambda: "by run/wait" in screen_text(app))
        await pilot.press("S")
        await until(pilot, lambda: order() == ["alpha", "gamma", "beta"])
        await pilot.press("p")
        await until(pilot, lambda: "paused" in screen_text(app))
        scripts[0].then(sample(running=77))
        await until(pilot, lambda: history_of(app, 0).num_points == 2)
        app.fleet._redraw()  # what the clock calls twice a second
        assert "77/" not in screen_text(app)
        await pilot.press("space")
        await until(pilot, shows(app, "alpha", "77/"))


async def test_refresh_cuts_every_wait_short(scripts: list[Script]) -> None:
    app = FleetApp([script.server for script in scripts], interval_s=3600.0)
    async with app.run_test(size=(80, 24)) as pilot:
        for script in scripts:
            script.then(sample(running=1), sample(running=2))
        await until(pilot, lambda: all(history_of(app, n).num_points == 1 for n in range(3)))
        await pilot.press("r")
        await until(pilot, lambda: all(history_of(app, n).num_points == 2 for n in range(3)))


async def test_help_names_the_keys_of_the_table(app: FleetApp) -> None:
    async with app.run_test(size=(80, 40)) as pilot:
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        await until(pilot, lambda: "the selected server's dashboard" in screen_text(app))
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, FleetScreen))


class OneAtATime:
    """A source that notes how many scrapes of it were in flight at once."""

    def __init__(self, source: SampleSource) -> None:
        self._source = source
        self._num_now = self.num_most = 0

    async def scrape(self) -> MetricsSample:
        self._num_now += 1
        self.num_most = max(self.num_most, self._num_now)
        try:
            return await self._source.scrape()
        finally:
            self._num_now -= 1

    async def aclose(self) -> None:
        await self._source.aclose()


async def test_a_server_that_hangs_holds_nobody_up() -> None:
    release = threading.Event()

    def hang(_call: Call) -> Answer:
        release.wait(300)
        return Answer([b""], status=500)

    def metrics(_call: Call) -> Answer:
        return Answer([b"vllm:num_requests_running 3\n"])

    try:
        with serving({"/metrics": hang}) as stuck, serving({"/metrics": metrics}) as live:
            hung = watch_url(stuck.url, name="stuck")
            source = OneAtATime(hung.open_source())
            hung = dataclasses.replace(hung, open_source=lambda: source)
            app = FleetApp([hung, watch_url(live.url, name="live")], interval_s=0.01)
            async with app.run_test(size=(80, 24)) as pilot:
                await until(pilot, lambda: history_of(app, 1).num_points > 5)
                await until(pilot, shows(app, "live", "busy"))
                await until(pilot, shows(app, "stuck", "away"))
                assert source.num_most == 1
                await pilot.press("k")
                await until(pilot, lambda: "did not answer in time" in screen_text(app))
            release.set()
    finally:
        release.set()


async def test_a_server_that_is_restarted_is_seen_and_counted_anew() -> None:
    counts = iter(range(1000, 1_000_000, 10))

    def metrics(_call: Call) -> Answer:
        text = f"vllm:num_requests_running 1\nvllm:generation_tokens_total {next(counts)}\n"
        return Answer([text.encode()])

    server = LocalServer({"/metrics": metrics})
    server.start()
    app = FleetApp([watch_url(server.url, name="one")], interval_s=0.02)
    try:
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, shows(app, "one", "busy"))
            server.stop()
            await until(pilot, shows(app, "one", "away"))
            counts = iter(range(5, 1_000_000, 10))  # a new process counts from nothing
            server.start()
            await until(pilot, shows(app, "one", "busy"))
            await until(pilot, lambda: history_of(app, 0).num_points > 4)
    finally:
        server.stop()
    shown = history_of(app, 0).snapshot()
    assert shown is not None
    assert shown.num_restarts == 1
    assert shown.generation_tokens_per_s is not None
    assert shown.generation_tokens_per_s >= 0


@pytest.mark.parametrize(
    ("state", "reason", "has_sample", "text"),
    [
        ("", "", False, "○ connecting"),
        ("starting", "", False, "○ starting"),
        ("starting", "refused", False, "✖ starting"),
        ("", "refused", True, "✖ away"),
        ("draining", "", True, "▲ draining"),
        ("stalled", "", True, "▲ stalled"),
        ("ready", "", True, "● busy"),
    ],
)
def test_states(state: str, reason: str, has_sample: bool, text: str) -> None:
    history = MetricHistory()
    if has_sample:
        history.append(sample(running=1, waiting=0))
    row = FleetRow("one", history.snapshot(), reason=reason, supervised=state)
    assert row.state == text


def test_text_for_a_pipe() -> None:
    servers = [watch_url("http://a:1", name="a"), watch_url("http://b:1", name="b")]
    found = [Scraped(servers[0], sample(running=2, waiting=0)), Scraped(servers[1], None, GONE)]
    lines = table_text(found).splitlines()
    assert lines[0].split()[:3] == ["server", "state", "run/wait"]
    assert lines[1].split()[:4] == ["a", "●", "busy", "2/0"]
    assert lines[2].startswith("b       ✖ away")
    assert lines[3] == f"b: {GONE}"


async def test_past_samples_come_before_the_first_scrape() -> None:
    script = Script("old")

    async def past() -> list[MetricsSample]:
        await asyncio.sleep(0)
        now_s = time.monotonic()
        return [
            MetricsSample(now_s - 20, "vllm", running=1, generation_tokens=10),
            MetricsSample(now_s - 10, "vllm", running=1, generation_tokens=60),
        ]

    app = FleetApp([dataclasses.replace(script.server, past=past)], interval_s=0.01)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: history_of(app, 0).num_points == 2)
        table = app.fleet.query_one(FleetTable)
        await until(pilot, lambda: "5.0" in row_of(app, "old"))
        assert table.row_count == 1


@pytest.mark.parametrize(("width", "is_whole"), [(80, False), (160, True)])
async def test_long_names_keep_both_ends_and_wide_terminals_show_more(
    width: int, is_whole: bool
) -> None:
    name = "gpu-host-17.example.org:8000"
    app = FleetApp([Script(name).server, Script("b").server])
    async with app.run_test(size=(width, 24)) as pilot:
        await until(pilot, lambda: "connecting" in screen_text(app))
        await settled(pilot)
        first = screen_text(app).splitlines()[2].split()[0]
        assert first.startswith("gpu-h")
        assert first.endswith(":8000")
        assert (first == name) == is_whole


async def test_a_dead_server_tells_what_its_supervisor_knows() -> None:
    dead, fine = Script("alpha", "failed"), Script("beta")
    dead.server = dataclasses.replace(dead.server, cause=lambda: "the KV cache does not fit")
    app = FleetApp([dead.server, fine.server], interval_s=0.001)
    async with app.run_test(size=(120, 20)) as pilot:
        await until(pilot, lambda: len(dead.opened) == 1)
        dead.then(Unreachable("no server answers"))
        await until(pilot, lambda: "the KV cache does not fit" in screen_text(app))
        assert "no server answers" not in screen_text(app)
        await pilot.press("enter")
        await until(pilot, lambda: len(dead.opened) == 2)
        dead.then(Unreachable("no server answers"))
        await until(pilot, lambda: "the KV cache does not fit" in screen_text(app))


async def test_a_full_server_stands_out_without_colours() -> None:
    full, fine = Script("alpha"), Script("beta")
    engines = (EngineLoad("engine 0", kv_usage=0.1), EngineLoad("engine 1", kv_usage=0.98))
    app = FleetApp([full.server, fine.server], interval_s=0.001)
    async with app.run_test(size=(120, 20)) as pilot:
        await until(pilot, lambda: len(full.opened) == len(fine.opened) == 1)
        full.then(sample(running=2, waiting=0, kv_usage=0.54, engines=engines))
        fine.then(sample(running=1, waiting=0, kv_usage=0.2))
        await until(pilot, lambda: "● busy ✖" in row_of(app, "alpha"))
        assert "98.0 %" in row_of(app, "alpha")
        assert "✖" not in row_of(app, "beta")
        await until(pilot, lambda: "✖ KV cache 98.0 % (alarm from 97.0 %)" in screen_text(app))


def test_a_server_that_sleeps_is_not_called_idle() -> None:
    history = MetricHistory()
    history.append(sample(running=0, waiting=0, sleep_state="discard_all"))
    assert FleetRow("one", history.snapshot()).state == "○ asleep"
