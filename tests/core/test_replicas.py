"""Several real EngineCore processes behind one client: shared out, killed, started again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest

from engine.core.client import AsyncMPClient
from engine.core.replicas import ReplicatedClient, create_client, replica_config
from engine.errors import EngineDeadError, MemoryBudgetError, ReplicaDownError
from engine.messages import EngineCoreOutput, EngineCoreRequest, FinishReason
from engine.sampling_params import SamplingParams
from tests.core.conftest import engine_config

REPLICAS = 2
RESTART_TIMEOUT_S = 120


def request(request_id: str, max_tokens: int) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=[1, 2, 3],
        sampling_params=SamplingParams(temperature=0.0, max_tokens=max_tokens),
        arrival_time=time.time(),
    )


class Reader:
    """Collects what every request got, and from which engine."""

    def __init__(self, client: ReplicatedClient) -> None:
        self._client = client
        self.tokens: dict[str, list[int]] = {}
        self.engines: dict[str, set[int]] = {}
        self.ends: dict[str, EngineCoreOutput] = {}

    async def until_ended(self, *request_ids: str) -> None:
        while not set(request_ids) <= self.ends.keys():
            await self.read()

    async def read(self) -> None:
        outputs = await asyncio.wait_for(self._client.get_output(), 60)
        for output in outputs.outputs:
            name = output.request_id
            self.tokens.setdefault(name, []).extend(output.new_token_ids)
            self.engines.setdefault(name, set()).add(outputs.engine_index)
            if output.finish_reason is not None:
                self.ends[name] = output


@pytest.fixture
async def client(tiny_folder: Path) -> AsyncIterator[ReplicatedClient]:
    client = create_client(engine_config(tiny_folder, data_parallel_size=REPLICAS))
    assert isinstance(client, ReplicatedClient)
    assert len(await client.start()) == REPLICAS
    yield client
    await client.shutdown(0.0)


async def drain(client: ReplicatedClient) -> None:
    while True:
        await asyncio.wait_for(client.get_output(), 60)


def running(client: ReplicatedClient) -> list[psutil.Process]:
    return [psutil.Process(pid) for pid in client.pids if pid is not None]


@contextlib.contextmanager
def stopped(client: ReplicatedClient) -> Iterator[None]:
    """While the engines say nothing, only what they are sent decides who is next."""
    processes = running(client)
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):  # killed meanwhile
                process.resume()


async def test_requests_are_shared_out_and_answered_alike(client: ReplicatedClient) -> None:
    reader, names = Reader(client), [f"r{number}" for number in range(8)]
    with stopped(client):
        for name in names:
            await client.add_request(request(name, 20))
    assert Counter(client.engine_of(name) for name in names) == {0: 4, 1: 4}
    await reader.until_ended(*names)
    assert {engine for engines in reader.engines.values() for engine in engines} == {0, 1}
    assert all(len(engines) == 1 for engines in reader.engines.values())
    assert {tuple(tokens) for tokens in reader.tokens.values()} == {tuple(reader.tokens["r0"])}
    assert len(reader.tokens["r0"]) == 20


async def test_the_least_loaded_replica_is_next(client: ReplicatedClient) -> None:
    reader = Reader(client)
    with stopped(client):
        for name in ("a", "b", "c"):
            await client.add_request(request(name, 400))
        busy = client.engine_of("a")
        assert [client.engine_of(name) for name in ("a", "b", "c")] == [busy, 1 - busy, busy]
        await client.abort_requests(["a", "c"])
        await client.add_request(request("d", 4))  # the other one still has "b"
        assert client.engine_of("d") == busy
    await reader.until_ended("d", "b")


async def test_a_killed_replica_fails_its_own_requests_and_serves_again(
    client: ReplicatedClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("engine"), "propagate", True)
    caplog.set_level(logging.INFO)
    reader, names = Reader(client), [f"r{number}" for number in range(4)]
    with stopped(client):
        for name in names:
            await client.add_request(request(name, 400))
        places = {name: client.engine_of(name) for name in names}
        victim = client.pids[1]
        assert victim is not None
        os.kill(victim, signal.SIGKILL)  # before it has done any of them
    while not any(end.finish_reason is FinishReason.ERROR for end in reader.ends.values()):
        await reader.read()
    with pytest.raises(ReplicaDownError, match="EngineCore_DP1 is down"):
        await client.call_utility("reset_prefix_cache", 1)
    await reader.until_ended(*names)
    for name in names:
        end = reader.ends[name]
        if places[name] == 1:
            assert end.finish_reason is FinishReason.ERROR
            assert "EngineCore_DP1" in str(end.error)
        else:
            assert end.finish_reason is FinishReason.LENGTH
            assert len(reader.tokens[name]) == 400
    reader.engines.clear()

    # Of two requests at a time one goes to each replica that is there.
    number, deadline = 0, time.monotonic() + RESTART_TIMEOUT_S
    while 1 not in {engine for engines in reader.engines.values() for engine in engines}:
        assert time.monotonic() < deadline, f"only one of {client.pids} serves:\n{caplog.text}"
        number += 1
        pair = (f"a{number}", f"b{number}")
        for name in pair:
            await client.add_request(request(name, 2))
        await reader.until_ended(*pair)
    assert client.pids[1] not in (None, victim)


async def test_who_asks_a_replica_that_dies_learns_that_others_serve(
    client: ReplicatedClient,
) -> None:
    reading = asyncio.create_task(drain(client))
    with stopped(client):
        asked = asyncio.create_task(client.call_utility("sleep_level", 1))
        await asyncio.sleep(0)
        running(client)[1].kill()
        with pytest.raises(ReplicaDownError, match="EngineCore_DP1 is down"):
            await asked
    reading.cancel()


async def test_a_replica_that_nobody_can_watch_any_more_ends_the_engine(
    client: ReplicatedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_self: AsyncMPClient, _timeout_s: float) -> None:
        raise RuntimeError("not foreseen")

    with monkeypatch.context() as patch:
        patch.setattr(AsyncMPClient, "shutdown", fail)
        running(client)[0].kill()
        with pytest.raises(EngineDeadError, match="The watch over EngineCore_DP0 failed"):
            await drain(client)
        with pytest.raises(EngineDeadError):
            await client.add_request(request("a", 1))


async def test_without_any_replica_there_is_no_engine(client: ReplicatedClient) -> None:
    processes = running(client)
    for process in processes:
        process.suspend()  # so that neither is started again before the other has ended
    for process in processes:
        process.kill()
    await client.add_request(request("a", 400))
    with pytest.raises(EngineDeadError, match="exit code -9"):
        await drain(client)
    with pytest.raises(EngineDeadError):
        await client.add_request(request("b", 1))


async def test_a_failed_start_leaves_no_process(tiny_folder: Path) -> None:
    config = engine_config(tiny_folder, data_parallel_size=2, kv_cache_memory_bytes=8 * 4096)
    client = create_client(config)
    with pytest.raises(MemoryBudgetError, match="estimated maximum model length"):
        await client.start()
    children = psutil.Process().children(recursive=True)
    assert not [child for child in children if "--handshake" in child.cmdline()]


def test_replicas_on_a_cpu_share_what_it_has(tiny_folder: Path) -> None:
    config = engine_config(
        tiny_folder, data_parallel_size=4, gpu_memory_utilization=0.8, num_threads=3
    )
    third = replica_config(config, 2)
    assert third.parallel.engine_name == "EngineCore_DP2"
    assert third.cache.gpu_memory_utilization == pytest.approx(0.2)
    assert third.device.num_threads == 3
    many = replica_config(engine_config(tiny_folder, data_parallel_size=200), 0)
    assert many.device.num_threads == 1
