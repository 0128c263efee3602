"""Several API servers of one `serve`: asked as one, killed one by one, nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from logparse import parse_lines
from tests.e2e.running_server import Server, tiny_server
from tests.waiting import is_running, wait_for

RECORD = "traffic.jsonl"
RECEIVED = re.compile(r"\((ApiServer_\d) pid=\d+\).*Received request (\S+): ")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    flags = ("--data-parallel-size", "2", "--enable-debug-endpoints", "--enable-log-requests")
    record = ("--record-traffic", str(tmp_path / RECORD))
    with tiny_server(tmp_path / "tiny", *flags, *record) as server:
        yield server


@contextlib.contextmanager
def standing_engines(server: Server) -> Iterator[None]:
    """What they are given stays with them."""
    engines = [server.process_of(f"EngineCore_DP{rank}") for rank in (0, 1)]
    for engine in engines:
        engine.suspend()
    try:
        yield
    finally:
        for engine in engines:
            engine.resume()


def metric(server: Server, pattern: str) -> float:
    """The sum of the series that match."""
    text = httpx.get(f"{server.url}/metrics", timeout=60).text
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if re.match(pattern, line)
    )


def load(server: Server) -> int:
    return int(httpx.get(f"{server.url}/load", timeout=60).json()["server_load"])


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_for, condition)


async def ask(server: Server) -> int | str:
    """Over a connection of its own: the status, or how the connection broke off."""
    body = {"model": "tiny", "prompt": "a b", "max_tokens": 5, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as http:
        try:
            return (await http.post("/v1/completions", json=body)).status_code
        except httpx.TransportError as error:
            return type(error).__name__


def received(server: Server) -> list[tuple[str, str]]:
    """Which API server got which request, in order."""
    return [(owner, f"{name}-0") for owner, name in RECEIVED.findall(server.text)]


async def asked_of_both(server: Server) -> list[asyncio.Task[int | str]]:
    """Requests that came at once, until both API servers have some."""
    asked: list[asyncio.Task[int | str]] = []
    while len({owner for owner, _ in received(server)}) < 2:
        asked += [asyncio.create_task(ask(server)) for _ in range(6)]
        await until_received(server, len(asked))
    return asked


async def until_received(server: Server, count: int) -> None:
    await until(lambda: len(received(server)) == count)


async def test_whichever_is_asked_answers_for_all_and_all_end_with_their_parent(
    server: Server,
) -> None:
    with standing_engines(server):
        asked = await asked_of_both(server)
        await until(lambda: load(server) == len(asked))
        assert [load(server) for _ in range(4)] == [len(asked)] * 4
        for _, request_id in received(server):
            answer = httpx.delete(f"{server.url}/debug/requests/{request_id}", timeout=60)
            assert answer.json() == {"id": request_id, "cancelled": True}
        assert await asyncio.gather(*asked) == [500] * len(asked)
    assert await ask(server) == 200
    for _ in range(4):
        url = f"{server.url}/debug/requests/{received(server)[-1][1]}/trace"
        assert httpx.get(url, timeout=60).status_code == 200
    assert httpx.get(f"{server.url}/debug/requests/none/trace", timeout=60).status_code == 404
    assert metric(server, "vllm:request_success_total.*length") == 1
    assert metric(server, "vllm:request_success_total.*abort") == len(asked)

    tree = server.tree()
    server.process.kill()
    wait_for(lambda: not any(map(is_running, tree)))


async def test_what_dies_is_named_and_started_again_and_the_others_go_on(
    server: Server, tmp_path: Path
) -> None:
    with standing_engines(server):
        asked = await asked_of_both(server)
        owners = [owner for owner, _ in received(server)]
        server.process_of("ApiServer_0").kill()
        await until(lambda: "1 of 2 API servers are left" in server.text)
    ends = await asyncio.gather(*asked)
    answered = ends.count(200)
    assert answered == owners.count("ApiServer_1")
    await until(lambda: re.search(r"ApiServer_0 \(pid \d+\) serves again", server.text) is not None)
    wait_for(lambda: metric(server, "vllm:num_requests_(running|waiting){") == 0)

    server.process_of("DPCoordinator").kill()
    ends = await asyncio.gather(*(ask(server) for _ in range(4)))
    await until(
        lambda: re.search(r"DPCoordinator \(pid \d+\) serves again", server.text) is not None
    )
    ends += await asyncio.gather(*(ask(server) for _ in range(4)))
    assert ends == [200] * 8
    answered += len(ends)
    # What the dead one had counted is still there.
    assert metric(server, "vllm:request_success_total.*length") == answered
    assert metric(server, "vllm:generation_tokens_total") == 5 * answered
    assert server.stop() == 0
    found = {warning.id for warning in parse_lines(server.lines).insight.warnings}
    assert {"own-api-server-died", "own-coordinator-died"} <= found
    # All write one record, and have one name for what began alike, the new one too.
    lines = [json.loads(line) for line in (tmp_path / RECORD).read_text().splitlines()]
    assert [line["output_length"] for line in lines] == [5] * answered
    assert len({tuple(line["hash_ids"]) for line in lines}) == 1
