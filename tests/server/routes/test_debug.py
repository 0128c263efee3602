"""/debug over the real application: off by default, behind the key, never a prompt's text."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import openai
import pytest

from app.client.debug.documents import DebugSource
from app.client.errors import BadStatus, Unauthorized
from engine.errors import ConfigError
from engine.server.routes import debug
from engine.server.routes.debug import check_debug_access
from tests.server.fake_core import FakeCore
from tests.server.scheduling_core import CoreWithScheduler
from tests.server.serving import MODEL, serving
from tests.waiting import until
from tui.state.engine_state import EngineActivity, EngineState, after_failure

PATHS = ("/debug/scheduler", "/debug/requests", "/debug/blocks")


async def test_off_unless_asked_for(tiny_folder: Path) -> None:
    async with serving(tiny_folder, FakeCore([1]), in_process=True) as served:
        for path in PATHS:
            assert (await served.http.get(path)).status_code == 404
        assert (await served.http.delete("/debug/requests/a")).status_code == 404
        assert served.core.utilities == []


async def test_key_guards_all_of_it(tiny_folder: Path) -> None:
    core = CoreWithScheduler([1])
    async with serving(tiny_folder, core, api_key="k", has_debug_routes=True) as served:
        for path in PATHS:
            assert (await served.http.get(path)).status_code == 401
        assert (await served.http.delete("/debug/requests/a")).status_code == 401
        assert core.utilities == []
        async with contextlib.aclosing(DebugSource(served.url)) as source:
            with pytest.raises(Unauthorized):
                await source.fetch()


async def test_the_client_reads_what_the_server_answers(tiny_folder: Path) -> None:
    core = CoreWithScheduler([1])
    async with (
        serving(tiny_folder, core, api_key="k", has_debug_routes=True) as served,
        contextlib.aclosing(DebugSource(served.url, api_key="k")) as source,
    ):
        found = await source.fetch()
    assert [request.id for request in found.requests] == ["a"]
    assert found.blocks.owners == {"a": (1, 2, 3)}
    assert (found.blocks.num_used, found.blocks.num_free, found.blocks.num_cached) == (3, 16, 0)
    assert found.scheduler.num_running == 1


async def test_cancel_ends_the_request_for_its_client(tiny_folder: Path) -> None:
    core = FakeCore([65], step_s=0.01)
    async with serving(tiny_folder, core, has_debug_routes=True) as served:
        waiting = asyncio.create_task(
            served.openai.completions.create(model=MODEL, prompt="ab", max_tokens=400)
        )
        await until(lambda: core.num_running == 1)
        (request,) = core.requests
        async with contextlib.aclosing(DebugSource(served.url)) as source:
            await source.cancel(request.request_id)
            with pytest.raises(openai.InternalServerError, match="cancelled on the server"):
                await waiting
            await until(lambda: core.aborted == [request.request_id])
            with pytest.raises(BadStatus, match="no live request") as caught:
                await source.cancel(request.request_id)
            assert caught.value.status == 404


async def test_times_of_a_request_and_who_asked(tiny_folder: Path) -> None:
    core = CoreWithScheduler([65, 66], step_s=0.01)
    async with (
        serving(tiny_folder, core, has_debug_routes=True) as served,
        contextlib.aclosing(DebugSource(served.url)) as source,
    ):
        answer = await served.http.post(
            "/v1/completions",
            json={"model": MODEL, "prompt": "ab", "max_tokens": 3, "stream": True},
        )
        (request,) = core.requests
        trace = await source.trace(request.request_id)
        with pytest.raises(BadStatus, match="No times of a request") as caught:
            await source.trace("never")
    assert caught.value.status == 404
    names = ("received", "read", "tokenized", "built", "registered", "sent")
    later = ("first_output", "first_text", "first_event", "last_event")
    times = [trace.marks[name] for name in (*names, *later)]
    assert times == sorted(times)
    assert times[0] == 0
    assert "rendered" not in trace.marks  # a raw prompt has no template
    assert trace.client is not None
    assert trace.client.startswith("127.0.0.1:")
    assert (trace.prompt_tokens, trace.num_outputs) == (len(request.prompt_token_ids), 3)
    assert 1 <= trace.num_events <= 3
    assert answer.text.endswith("data: [DONE]\n\n")


async def test_engine_that_is_in_a_long_step(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debug, "ANSWER_TIMEOUT_S", 0.01)
    core = CoreWithScheduler([1])
    core.is_stuck = True
    async with (
        serving(tiny_folder, core, has_debug_routes=True) as served,
        contextlib.aclosing(DebugSource(served.url)) as source,
    ):
        response = await served.http.get("/debug/scheduler")
        with pytest.raises(BadStatus) as caught:
            await source.fetch()
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_in_step"
    # The dashboard tells such an engine from one that is away by these words.
    assert after_failure(EngineState(), caught.value, "stoker").activity is EngineActivity.STALLED


def test_open_port_without_a_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="STOKER_API_KEY"):
        check_debug_access("0.0.0.0", None)
    check_debug_access("0.0.0.0", "key")
    check_debug_access("127.0.0.1", None)
