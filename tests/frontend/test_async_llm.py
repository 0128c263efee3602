from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest

from engine.errors import EngineDeadError, EngineError
from engine.frontend.async_llm import AsyncLLM
from engine.messages import EngineCoreRequest
from engine.sampling_params import SamplingParams
from tests.server.fake_core import FakeCore
from tests.server.serving import make_llm
from tests.waiting import until


@pytest.fixture
def core() -> FakeCore:
    return FakeCore(answer=[10, 11, 12])


@pytest.fixture
async def llm(tiny_folder: Path, core: FakeCore) -> AsyncGenerator[AsyncLLM, None]:
    llm = make_llm(tiny_folder, core)
    llm.start()
    yield llm
    await llm.shutdown(EngineError("test over"))


def _request(llm: AsyncLLM, name: str, max_tokens: int = 400) -> EngineCoreRequest:
    params = SamplingParams(max_tokens=max_tokens)
    return llm.input_processor.process(name, [1, 2, 3], params, arrival_time=0.0)


async def _all_tokens(llm: AsyncLLM, name: str, count: int) -> list[int]:
    request = _request(llm, name, count)
    return [t async for output in llm.generate(request) for t in output.token_ids]


async def test_many_requests_at_once_get_their_own_tokens(llm: AsyncLLM) -> None:
    counts = list(range(1, 33))
    results = await asyncio.gather(*(_all_tokens(llm, str(n), n) for n in counts))
    for count, tokens in zip(counts, results, strict=True):
        assert tokens == [[10, 11, 12][i % 3] for i in range(count)]
    assert llm.num_unfinished == 0


async def test_leaving_early_aborts(llm: AsyncLLM, core: FakeCore) -> None:
    async with aclosing(llm.generate(_request(llm, "r"))) as outputs:
        await anext(outputs)
    await until(lambda: core.aborted == ["r"])
    assert core.num_running == 0
    assert llm.num_unfinished == 0


async def test_cancelled_consumer_aborts(llm: AsyncLLM, core: FakeCore) -> None:
    core.is_paused = True
    task = asyncio.create_task(_all_tokens(llm, "r", 400))
    await until(lambda: core.num_running == 1)
    task.cancel()
    await until(lambda: core.aborted == ["r"])
    assert task.cancelled()


async def test_death_fails_all_who_wait_and_all_who_come(llm: AsyncLLM, core: FakeCore) -> None:
    core.is_paused = True
    tasks = [asyncio.create_task(_all_tokens(llm, str(n), 400)) for n in range(3)]
    await until(lambda: core.num_running == 3)
    core.die()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, EngineDeadError)
    assert llm.dead.is_set()
    with pytest.raises(EngineDeadError):
        await _all_tokens(llm, "late", 1)


async def test_bug_in_the_handler_does_not_leave_requests_hanging(
    llm: AsyncLLM, core: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    core.is_paused = True
    task = asyncio.create_task(_all_tokens(llm, "r", 5))
    await until(lambda: core.num_running == 1)
    monkeypatch.setattr(core, "_step", lambda: "not the type that was agreed")
    core.resume()
    with pytest.raises(EngineDeadError, match="output handler"):
        await task


async def test_drain_waits_for_requests_in_flight(llm: AsyncLLM) -> None:
    await llm.drain(0.0)
    task = asyncio.create_task(_all_tokens(llm, "r", 20))
    await until(lambda: llm.num_unfinished == 1)
    await llm.drain(120.0)
    assert llm.num_unfinished == 0
    assert len(await task) == 20


async def test_shutdown_cuts_off_what_is_left(llm: AsyncLLM, core: FakeCore) -> None:
    core.is_paused = True
    task = asyncio.create_task(_all_tokens(llm, "r", 400))
    await until(lambda: core.num_running == 1)
    await llm.drain(0.01)
    await llm.shutdown(EngineError("stopped"))
    with pytest.raises(EngineError, match="stopped"):
        await task
    assert core.aborted == ["r"]
    with pytest.raises(EngineError, match="stopped"):
        await _all_tokens(llm, "late", 1)


async def test_reset_prefix_cache_asks_the_core(llm: AsyncLLM, core: FakeCore) -> None:
    assert await llm.reset_prefix_cache() is True
    assert core.utilities == ["reset_prefix_cache"]
