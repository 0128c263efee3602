"""The text of a prompt in /debug: only with --show-prompts, cut, and neutralised by the client."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from app.client.debug.documents import DebugSource
from app.client.debug.trace import Trace
from engine.args import EngineArgs
from engine.errors import ConfigError
from engine.frontend import request_traces
from engine.frontend.request_traces import FrontendTraces
from engine.server.routes.debug import check_debug_flags
from tests.server.scheduling_core import CoreWithScheduler
from tests.server.serving import MODEL, serving


async def trace_of(folder: Path, traces: FrontendTraces, prompt: str, path: str) -> Trace:
    core = CoreWithScheduler([65])
    async with (
        serving(folder, core, has_debug_routes=True) as served,
        contextlib.aclosing(DebugSource(served.url)) as source,
    ):
        served.llm.traces = traces
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
        assert (await served.http.post("/v1/completions", json=body)).is_success
        (request,) = core.requests
        for name in ("scheduler", "requests", "blocks"):
            assert prompt not in (await served.http.get(f"/debug/{name}")).text
        assert path in (await served.http.get(f"/debug/requests/{request.request_id}/trace")).text
        return await source.trace(request.request_id)


async def test_not_told_unless_asked_for(tiny_folder: Path) -> None:
    trace = await trace_of(tiny_folder, FrontendTraces(), "secret", "marks")
    assert trace.prompt is None


async def test_told_in_the_trace(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = FrontendTraces(keeps_prompts=True)
    trace = await trace_of(tiny_folder, traces, "secret", "secret")
    assert (trace.prompt, trace.is_prompt_cut) == ("secret", False)

    monkeypatch.setattr(request_traces, "MAX_SHOWN_TOKENS", 3)
    trace = await trace_of(tiny_folder, traces, "secret", "sec")
    assert trace.is_prompt_cut
    assert trace.prompt is not None
    assert len(trace.prompt) < len("secret")


def test_needs_the_endpoints() -> None:
    check_debug_flags(EngineArgs(show_prompts=True, enable_debug_endpoints=True))
    with pytest.raises(ConfigError, match="add --enable-debug-endpoints"):
        check_debug_flags(EngineArgs(show_prompts=True))
