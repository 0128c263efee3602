"""The engine page of the dashboard, driven by keys: every state, every key, both sizes."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from app.client.debug.documents import BlockState, DebugSample
from app.client.debug.trace import read_trace
from app.client.errors import BadStatus, EngineInStep, Unauthorized, Unreachable
from app.client.metrics.sample import MetricsSample
from app.client.metrics.slots import Slot
from tests.client.debug.trace_document import DOCUMENT
from tests.tui.engine_script import ScriptedDebug, rank, sample_of, with_ranks
from tests.tui.scripted import URL, ScriptedSource, screen_text, settled, until
from tui.app import DashboardApp
from tui.messages import DebugArrived, DebugFailed
from tui.screens.confirm import ConfirmScreen
from tui.screens.help import HelpScreen
from tui.state.debug_poller import DebugPoller
from tui.state.engine_state import (
    EngineActivity,
    EngineState,
    activity_text,
    after_failure,
    limit_text,
)
from tui.widgets.engine.block_map import draw_map
from tui.widgets.engine.rank_panel import RankPanel
from tui.widgets.engine.request_table import RequestTable

SIX = tuple((f"req-{number}", 20 + 10 * number, 9 - number) for number in range(6))
NOT_ENABLED = BadStatus(f"{URL}/debug/scheduler", 404, "There is no route")


@pytest.fixture
def source() -> ScriptedSource:
    return ScriptedSource()


def make_app(source: ScriptedSource, debug: ScriptedDebug, **options: Any) -> DashboardApp:
    return DashboardApp(URL, source, interval_s=0.001, debug_source=debug, **options)


def metrics(**values: Any) -> MetricsSample:
    base = MetricsSample(time.monotonic(), "stoker", model="smol", running=1, waiting=0)
    return dataclasses.replace(base, **values)


def shown_ids(app: DashboardApp) -> list[str]:
    table = app.dashboard.query_one(RequestTable)
    return [str(table.get_row_at(row)[-1]).strip() for row in range(table.row_count)]


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_everything_is_on_the_page(source: ScriptedSource, size: tuple[int, int]) -> None:
    debug = ScriptedDebug(sample_of(*SIX, num_steps=5, seqs=3))
    app = make_app(source, debug)
    async with app.run_test(size=size) as pilot:
        source.then(metrics(prefix_queries=200, prefix_hits=50, prefix_hit_rate=0.25))
        await pilot.press("2")
        await until(pilot, lambda: "req-0" in screen_text(app))
        await until(pilot, lambda: "25.0 % since start" in screen_text(app))
        await settled(pilot)
        text = screen_text(app)
        footer = text.splitlines()[-1]
    assert "● busy · 3 running, 3 waiting" in text
    assert "3 decode + 0 prefill = 3 of 64 tokens, 3 requests" in text
    assert "max_num_seqs: 3 of 3 run, 3 wait" in text
    assert "moved by --max-num-seqs" in text
    assert "waiting 1" in text
    assert "6 of 6" in text
    for words in ("Trace", "Sort", "Filter", "Cancel", "Back", "Pause", "Quit", "Help"):
        assert words in footer


@pytest.mark.parametrize(("size", "has_map"), [((80, 24), False), ((120, 40), True)])
async def test_log_takes_the_place_of_the_map_where_there_is_no_room(
    source: ScriptedSource, tmp_path: Path, size: tuple[int, int], has_map: bool
) -> None:
    log = tmp_path / "server.log"
    log.write_text("INFO one line\n")
    app = make_app(source, ScriptedDebug(sample_of(*SIX)), log_path=log)
    async with app.run_test(size=size) as pilot:
        await pilot.press("2")
        await until(pilot, lambda: "KV blocks" in screen_text(app))
        await pilot.press("l")
        await until(pilot, lambda: "INFO one line" in screen_text(app))
        await until(pilot, lambda: ("KV blocks" in screen_text(app)) == has_map)
        await until(pilot, lambda: "req-0" in screen_text(app))


async def test_asked_only_while_on_screen(source: ScriptedSource) -> None:
    debug = ScriptedDebug(sample_of(*SIX))
    app = make_app(source, debug)
    async with app.run_test(size=(80, 24)) as pilot:
        source.then(metrics())
        await until(pilot, lambda: "smol" in screen_text(app))
        assert debug.num_fetches == 0
        await pilot.press("2")
        await until(pilot, lambda: debug.num_fetches == 1)
        await pilot.press("1")
        await until(pilot, lambda: debug.is_closed)
        await until(pilot, lambda: "Latency" in screen_text(app))
        debug.then(sample_of(*SIX))
        await pilot.press("2")
        await until(pilot, lambda: debug.num_fetches == 2)
        await pilot.press("escape")
        await until(pilot, lambda: "Latency" in screen_text(app))


async def test_server_without_the_endpoints_says_why_and_shows_the_share(
    source: ScriptedSource,
) -> None:
    app = make_app(source, ScriptedDebug(NOT_ENABLED))
    async with app.run_test(size=(80, 24)) as pilot:
        source.then(metrics(kv_usage=0.42))
        await until(pilot, lambda: "smol" in screen_text(app))
        await pilot.press("2")
        await until(pilot, lambda: "42.0 % used" in screen_text(app))
        await until(pilot, lambda: "--enable-debug-endpoints" in screen_text(app))
        await settled(pilot)
        text = screen_text(app)
    assert "share only: the server was started without --enable-debug-endpoints" in text
    assert "last step n/a" in text
    assert "graph n/a" in text
    assert "limit compute: 1 run, none waits" in text
    assert "prefix hits n/a: the server does not count them" in text


async def test_other_engine(source: ScriptedSource) -> None:
    app = make_app(source, ScriptedDebug(NOT_ENABLED))
    async with app.run_test(size=(80, 24)) as pilot:
        source.then(metrics(engine="vllm", kv_usage=None))
        await until(pilot, lambda: "vLLM" in screen_text(app))
        await pilot.press("2")
        await until(pilot, lambda: "vLLM has no endpoint" in screen_text(app))
        await until(pilot, lambda: "- used" in screen_text(app))


async def test_ranks_have_no_place_where_there_are_none(source: ScriptedSource) -> None:
    app = make_app(source, ScriptedDebug(sample_of(*SIX)))
    async with app.run_test(size=(120, 40)) as pilot:
        source.then(metrics())
        await pilot.press("2")
        await until(pilot, lambda: "req-0" in screen_text(app))
        assert not app.dashboard.query_one(RankPanel).display


async def test_ranks_and_which_of_them_failed_first(source: ScriptedSource) -> None:
    """Where a rank is seen to stand, and later by the words of what ended the server."""
    found = sample_of(*SIX)
    pair = rank("Worker_TP0", 9.0, 3.0), rank("Worker_TP1", 9.0, 1.0)
    debug = ScriptedDebug(with_ranks(found, rank("Worker_TP0", None), rank("Worker_TP1", None)))
    app = make_app(source, debug)
    async with app.run_test(size=(80, 24)) as pilot:
        source.then(metrics())
        await pilot.press("2")
        await until(pilot, lambda: "skew n/a: no step yet" in screen_text(app))
        debug.then(with_ranks(found, *pair))
        await until(pilot, lambda: "25.0 %): Worker_TP1 computes longest" in screen_text(app))
        stopped = dataclasses.replace(pair[1], state="stopped")
        debug.then(with_ranks(found, pair[0], stopped))
        await until(pilot, lambda: "Worker_TP1 is stopped" in screen_text(app))
        debug.then(with_ranks(found, *pair))
        await until(pilot, lambda: "computes longest" in screen_text(app))
        app.dashboard.cause = lambda: "the process Worker_TP0 died without a message"
        source.then(Unreachable("nobody listens"))
        await until(pilot, lambda: "Worker_TP0 failed first" in screen_text(app))
        source.then(metrics())
        await until(pilot, lambda: "computes longest" in screen_text(app))


async def test_of_many_ranks_the_slowest_are_shown(source: ScriptedSource) -> None:
    ranks = [rank(f"Worker_TP{number}", 9.0, 9.0 - number % 10) for number in range(32)]
    app = make_app(source, ScriptedDebug(with_ranks(sample_of(*SIX), *ranks)))
    async with app.run_test(size=(120, 40)) as pilot:
        source.then(metrics())
        await pilot.press("2")
        await until(pilot, lambda: "computes longest" in screen_text(app))
        text = screen_text(app)
        assert [f"Worker_TP{number} " in text for number in (9, 19, 29, 0, 10)] == [
            True, True, True, False, False
        ]  # fmt: skip
        assert "24 quicker ones not shown" in text


@pytest.mark.parametrize("key", ["s", "f6"])
async def test_sort_and_reverse(source: ScriptedSource, key: str) -> None:
    debug = ScriptedDebug(sample_of(*SIX, num_steps=5, seqs=3))
    app = make_app(source, debug)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("2")
        await until(pilot, lambda: "req-5" in screen_text(app))
        assert shown_ids(app) == [f"req-{n}" for n in range(6)]
        await pilot.press(key, key)
        await until(pilot, lambda: "Requests by prompt" in screen_text(app))
        assert shown_ids(app) == [f"req-{n}" for n in reversed(range(6))]
        await pilot.press("S")
        await until(pilot, lambda: "Requests by prompt, reversed" in screen_text(app))
        assert shown_ids(app) == [f"req-{n}" for n in range(6)]


async def test_cursor_keys_stay_on_the_request_and_mark_its_blocks(source: ScriptedSource) -> None:
    first = sample_of(*SIX, num_steps=5, seqs=3)
    debug = ScriptedDebug(first)
    app = make_app(source, debug)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("2")
        await until(pilot, lambda: "req-5" in screen_text(app))
        table = app.dashboard.query_one(RequestTable)
        await until(pilot, lambda: "◆◆" in screen_text(app))
        await settled(pilot)
        with_first = screen_text(app).count("◆")
        await pilot.press("j", "j")
        assert table.selected == "req-2"
        await until(pilot, lambda: screen_text(app).count("◆") > with_first)
        await pilot.press("k")
        assert table.selected == "req-1"
        await pilot.press("s", "s")  # another order, the same request
        assert table.selected == "req-1"
        await pilot.press("G")
        assert table.selected == "req-0"
        await pilot.press("g")
        assert table.selected == "req-5"
        gone = dataclasses.replace(first, requests=first.requests[:2])
        app.dashboard.query_one("#engine").post_message(DebugArrived(gone))
        await until(pilot, lambda: table.row_count == 2)
        assert table.selected in ("req-0", "req-1")


@pytest.mark.parametrize("key", ["x", "f9", "ctrl+k"])
async def test_cancel_after_a_yes(source: ScriptedSource, key: str) -> None:
    debug = ScriptedDebug(sample_of(*SIX))
    app = make_app(source, debug)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("2")
        await until(pilot, lambda: "req-1" in screen_text(app))
        await pilot.press("j", key)
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await until(pilot, lambda: "Cancel request req-1?" in screen_text(app))
        assert debug.cancelled == []
        await pilot.press("y")
        await until(pilot, lambda: debug.cancelled == ["req-1"])
        await until(pilot, lambda: "Cancelled req-1." in screen_text(app))


@pytest.mark.parametrize("key", ["n", "escape", "enter", "q"])
async def test_no_cancel_after_anything_else(source: ScriptedSource, key: str) -> None:
    debug = ScriptedDebug(sample_of(*SIX))
    app = make_app(source, debug)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        await until(pilot, lambda: "req-1" in screen_text(app))
        await pilot.press("x")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press(key)
        await until(pilot, lambda: app.screen is app.dashboard)
    assert debug.cancelled == []


async def test_cancel_that_comes_too_late_is_told(source: ScriptedSource) -> None:
    debug = ScriptedDebug(sample_of(*SIX))
    debug.cancel_error = BadStatus(f"{URL}/debug/requests/req-0", 404, "it may have ended")
    app = make_app(source, debug)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await pilot.press("2")
        await until(pilot, lambda: "req-1" in screen_text(app))
        await pilot.press("x")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("y")
        await until(pilot, lambda: "may have ended" in screen_text(app))


async def test_read_only_cancels_nothing(source: ScriptedSource) -> None:
    debug = ScriptedDebug(sample_of(*SIX))
    app = make_app(source, debug, is_read_only=True)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("2")
        await until(pilot, lambda: "req-1" in screen_text(app))
        await pilot.press("x")
        await until(pilot, lambda: "--read-only" in screen_text(app))
        assert app.screen is app.dashboard
    assert debug.cancelled == []


async def test_nothing_to_cancel(source: ScriptedSource) -> None:
    debug = ScriptedDebug(sample_of())
    app = make_app(source, debug)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        await until(pilot, lambda: "○ idle · 0 running, 0 waiting" in screen_text(app))
        await until(pilot, lambda: "0 of 0" in screen_text(app))
        await until(pilot, lambda: "n/a: no step yet" in screen_text(app))
        await pilot.press("x")
        await settled(pilot)
        assert app.screen is app.dashboard


async def test_pause_freezes_this_page_too(source: ScriptedSource) -> None:
    debug = ScriptedDebug(sample_of(*SIX))
    app = make_app(source, debug)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        await until(pilot, lambda: "req-1" in screen_text(app))
        await pilot.press("p")
        app.dashboard.query_one("#engine").post_message(DebugArrived(sample_of(("new", 3, 4))))
        await settled(pilot)
        await until(pilot, lambda: "req-1" in screen_text(app))
        await pilot.press("p")
        app.dashboard.query_one("#engine").post_message(DebugArrived(sample_of(("new", 3, 4))))
        await until(pilot, lambda: shown_ids(app) == ["new"])


async def test_help_of_this_page(source: ScriptedSource) -> None:
    app = make_app(source, ScriptedDebug(sample_of(*SIX)))
    async with app.run_test(size=(80, 70)) as pilot:
        await pilot.press("2")
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        await until(pilot, lambda: "cancel the selected request" in screen_text(app))
        await settled(pilot)
        text = screen_text(app)
        for words in ("s, F6", "x, F9, Ctrl-K", "Esc", "stalled", "waiting 3"):
            assert words in text
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.dashboard)
        # Esc closed the help, not the page.
        await until(pilot, lambda: "Scheduler" in screen_text(app))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"running": 0, "waiting": 0}, "live · idle"),
        ({"running": 2, "waiting": 1}, "live · busy"),
        ({"running": None, "waiting": None, "engine": "sglang"}, "live"),
        ({"running": None, "waiting": None}, "starting"),
    ],
)
async def test_header_tells_busy_from_idle(
    source: ScriptedSource, values: dict[str, Any], words: str
) -> None:
    app = make_app(source, ScriptedDebug())
    async with app.run_test(size=(80, 24)) as pilot:
        source.then(metrics(**values))
        await until(pilot, lambda: screen_text(app).splitlines()[0].endswith(words))


async def test_header_tells_that_no_token_comes(source: ScriptedSource) -> None:
    app = make_app(source, ScriptedDebug())
    async with app.run_test(size=(80, 24)) as pilot:
        now = time.monotonic()
        source.then(
            metrics(time_s=now - 9, generation_tokens=5), metrics(time_s=now, generation_tokens=5)
        )
        await until(pilot, lambda: "busy, no token for 9.0 s" in screen_text(app))
        source.then(metrics(time_s=now + 1, generation_tokens=6))
        app.dashboard.poller.poll_now()
        await until(pilot, lambda: "no token" not in screen_text(app))


async def test_stalled_engine(source: ScriptedSource) -> None:
    good = sample_of(*SIX, num_steps=3)
    stalled = dataclasses.replace(
        good, scheduler=dataclasses.replace(good.scheduler, last_step_age_s=12.0)
    )
    app = make_app(source, ScriptedDebug(stalled))
    async with app.run_test(size=(80, 24)) as pilot:
        source.then(metrics())
        await pilot.press("2")
        await until(pilot, lambda: "no step for 12 s" in screen_text(app))
        await until(pilot, lambda: "live · stalled" in screen_text(app))
        await until(pilot, lambda: "▲ stalled · 6 running" in screen_text(app))


@pytest.mark.parametrize("key", ["enter", "d"])
async def test_walk_of_a_request(source: ScriptedSource, key: str) -> None:
    debug = ScriptedDebug(sample_of(*SIX, num_steps=5, seqs=3))
    debug.traces["req-1"] = read_trace(DOCUMENT)
    app = make_app(source, debug)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("2")
        await until(pilot, lambda: "req-5" in screen_text(app))
        await pilot.press("j", key)
        await until(pilot, lambda: "FINISHED_STOPPED" in screen_text(app))
        await settled(pilot)
        text = screen_text(app)
        assert "id req-1" in text
        assert "30 of 30 tokens, 16 cached" in text
        assert "cache 24 tokens as before; from token 25 on the text is another one" in text
        assert "client 127.0.0.1:5" in text
        assert "WAITING > RUNNING > FINISHED_STOPPED" in text
        forward = next(line for line in text.splitlines() if "forward pass" in line)
        assert "9 Worker 11.0 ms 45.0 ms 10.0 ms" in forward
        blocks = next(line for line in text.splitlines() if "blocks allocated" in line)
        assert "8 EngineCore - 0.40 ms 0.30 ms " in blocks
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.dashboard)


async def test_walk_that_nobody_kept(source: ScriptedSource) -> None:
    app = make_app(source, ScriptedDebug(sample_of(*SIX)))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        await until(pilot, lambda: "req-1" in screen_text(app))
        await pilot.press("enter")
        await until(pilot, lambda: "not measured: No times are kept" in screen_text(app))
        await until(pilot, lambda: "client n/a: the server does not tell" in screen_text(app))


async def test_the_next_replica_is_looked_at(source: ScriptedSource) -> None:
    def of_engine(rank: int) -> DebugSample:
        sample = sample_of(*SIX)
        scheduler = dataclasses.replace(sample.scheduler, engine=rank, num_engines=2)
        return dataclasses.replace(sample, scheduler=scheduler)

    debug = ScriptedDebug(of_engine(0))
    app = make_app(source, debug)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("2")
        await until(pilot, lambda: "engine 0 of 2 (e: the next)" in screen_text(app))
        await pilot.press("e")
        await until(pilot, lambda: debug.engine == 1)
        await until(pilot, lambda: "engine 0 of 2" not in screen_text(app))
        debug.then(of_engine(1))
        await until(pilot, lambda: "engine 1 of 2" in screen_text(app))
        await pilot.press("e")
        await until(pilot, lambda: debug.engine == 0)


async def test_filter_and_its_inverse(source: ScriptedSource) -> None:
    app = make_app(source, ScriptedDebug(sample_of(*SIX, num_steps=5, seqs=3)))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("2")
        await until(pilot, lambda: "req-5" in screen_text(app))
        await pilot.press("slash", *"req-4")
        await until(pilot, lambda: shown_ids(app) == ["req-4"])
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.focused, RequestTable))
        await until(pilot, lambda: "only req-4" in screen_text(app))
        await until(pilot, lambda: "1 of 6" in screen_text(app))
        await pilot.press("slash", *(["backspace"] * 5), *"!running")
        await until(pilot, lambda: shown_ids(app) == ["req-3", "req-4", "req-5"])
        keys = screen_text(app).splitlines()[-1]
        assert "? Help" not in keys  # it would be typed
        assert "1 Back" not in keys
        await pilot.press("escape")  # forgets the filter, does not leave the page
        await until(pilot, lambda: isinstance(app.focused, RequestTable))
        await until(pilot, lambda: len(shown_ids(app)) == 6)
        await until(pilot, lambda: "Requests by" in screen_text(app))
        await pilot.press("slash", *"req-2", "enter")
        await until(pilot, lambda: shown_ids(app) == ["req-2"])
        await pilot.press("escape")  # the kept one too
        await until(pilot, lambda: len(shown_ids(app)) == 6)
        await pilot.press("escape")
        await until(pilot, lambda: "KV cache" in screen_text(app))


async def test_slots_of_llama_server(source: ScriptedSource) -> None:
    debug = ScriptedDebug(NOT_ENABLED)
    busy = Slot(
        number=1, num_context_tokens=1024, is_busy=True, task=7, prompt_tokens=4,
        prompt_tokens_done=4, cached_tokens=1, output_tokens=49, max_tokens=300,
    )  # fmt: skip
    free = Slot(number=0, num_context_tokens=1024, is_busy=False)
    debug.slot_answers = [(free, busy)]
    app = make_app(source, debug)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        source.then(metrics(engine="llama.cpp"))
        await until(pilot, lambda: "llama.cpp" in screen_text(app))
        await pilot.press("2")
        await until(pilot, lambda: "Slots by" in screen_text(app))
        await until(pilot, lambda: len(shown_ids(app)) == 2)
        await settled(pilot)
        text = screen_text(app)
        assert "busy - 4/4 49/300 - - - 1 slot 1, 53 of 1,024 tokens, task 7" in text
        assert "free - - - - - - - slot 0, - of 1,024 tokens" in text
        assert "2.6 % used" in text
        assert "53 of 2,048 tokens in busy slots" in text
        await pilot.press("x")
        await until(pilot, lambda: "no endpoint that ends a request" in screen_text(app))
        assert app.screen is app.dashboard


async def test_slots_that_are_off(source: ScriptedSource) -> None:
    debug = ScriptedDebug(NOT_ENABLED)
    debug.slot_answers = [BadStatus(f"{URL}/slots", 501, "start it with --slots")]
    app = make_app(source, debug)
    async with app.run_test(size=(120, 40)) as pilot:
        source.then(metrics(engine="llama.cpp"))
        await until(pilot, lambda: "llama.cpp" in screen_text(app))
        await pilot.press("2")
        await until(pilot, lambda: "start it with --slots" in screen_text(app))


async def test_steps_back_show_what_the_engine_told_then(source: ScriptedSource) -> None:
    now = time.monotonic()
    older = dataclasses.replace(sample_of(("old", 20, 9)), time_s=now - 10)
    newer = dataclasses.replace(sample_of(("new", 20, 9)), time_s=now)
    app = make_app(source, ScriptedDebug())
    async with app.run_test(size=(120, 40)) as pilot:
        source.then(metrics(time_s=now - 10), metrics(time_s=now))
        await until(pilot, lambda: app.dashboard.history.num_points == 2)
        await pilot.press("2")
        engine = app.dashboard.query_one("#engine")
        engine.post_message(DebugArrived(older))
        engine.post_message(DebugArrived(newer))
        await until(pilot, lambda: shown_ids(app) == ["new"])
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: shown_ids(app) == ["old"])
        await pilot.press("right_square_bracket")
        await until(pilot, lambda: shown_ids(app) == ["new"])


# ---- what is said, without a screen -------------------------------------------------------------


def test_failures_keep_or_drop_the_last_sample() -> None:
    state = EngineState(sample_of(*SIX))
    assert after_failure(state, NOT_ENABLED, "stoker").sample is None
    refused = after_failure(state, Unauthorized(URL, 401, "no key"), "stoker")
    assert "STOKER_API_KEY" in activity_text(refused)
    away = after_failure(state, Unreachable("no server answers"), "stoker")
    assert away.sample is state.sample
    assert activity_text(away) == "n/a: no server answers"
    stuck = EngineInStep(
        URL, 503, "The engine has not ended its step for 2 s (3 requests in flight)."
    )
    in_step = after_failure(state, stuck, "stoker")
    assert in_step.activity is EngineActivity.STALLED
    assert "3 requests in flight" in activity_text(in_step)


def test_limits_have_evidence_and_a_flag() -> None:
    def said(sample: DebugSample) -> tuple[str, str]:
        return limit_text(sample.scheduler)

    assert said(sample_of(*SIX, tokens=32)) == (
        "token budget: 32 of 32 tokens, 4 wait",
        "--max-num-batched-tokens",
    )
    no_room = said(sample_of(("a", 60, 3), ("b", 60, 3), ("c", 600, 3), num_blocks=33, tokens=2048))
    assert no_room[0] == "KV memory: 27 blocks left, the next in line needs up to 38"
    assert "--gpu-memory-utilization" in no_room[1]
    assert (
        said(sample_of(("a", 5, 9)))[0]
        == "compute: the step took all there was; its time is the limit"
    )
    assert said(sample_of(("a", 5, 1)))[0] == "none: nothing is queued"
    assert said(sample_of()) == ("n/a: no step yet", "-")


@pytest.mark.parametrize("num_blocks", [2, 30, 65, 700, 7001])
@pytest.mark.parametrize(("width", "rows"), [(76, 2), (116, 9), (1, 1)])
def test_map_holds_every_block_once(num_blocks: int, width: int, rows: int) -> None:
    blocks = sample_of(("a", 17, 4), num_blocks=num_blocks + 1).blocks
    drawn = draw_map(blocks, width, rows)
    assert (len(drawn.cells) - 1) * drawn.blocks_per_cell < num_blocks
    assert len(drawn.cells) * drawn.blocks_per_cell >= num_blocks
    assert -(-len(drawn.cells) // (width // drawn.columns)) <= rows
    if drawn.blocks_per_cell == 1:
        assert Counter(drawn.cells)[BlockState.USED] == blocks.num_used


async def test_poller_asks_a_refusing_server_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    posted: list[object] = []
    waits: list[float] = []

    class Done(Exception):
        pass

    async def sleep(delay_s: float) -> None:
        waits.append(delay_s)
        if len(waits) == 3:
            raise Done

    monkeypatch.setattr("tui.state.debug_poller.asyncio.sleep", sleep)
    debug = ScriptedDebug(sample_of(), NOT_ENABLED, Unreachable("away"))
    with pytest.raises(Done):
        await DebugPoller(debug, posted.append).run()
    assert waits == [1.0, 10.0, 1.0]
    assert [type(message) for message in posted] == [DebugArrived, DebugFailed, DebugFailed]
    assert debug.is_closed
