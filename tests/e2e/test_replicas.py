"""`stoker serve -dp 2` over HTTP: load on both, one killed under load, its log explained."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.client.debug.documents import DebugSource
from app.launch.engines import STOKER
from app.planning.plan_request import PlanRequest
from app.planning.process_layout import processes
from engine.machine.processes import role_of
from logparse import Outcome, parse_lines
from tests.e2e.running_server import ENGINE, START_TIMEOUT_S, Server, free_port, started
from tests.tiny_model import write_tiny_llama
from tests.waiting import until, wait_for

PLANNED = PlanRequest(gpu=None, engine=STOKER, data_parallel_size=2)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folder, port = write_tiny_llama(tmp_path / "tiny"), free_port()
    flags = ["--data-parallel-size", "2", "--dtype", "float32", "--port", str(port)]
    flags += ["--served-model-name", "tiny", "--enable-debug-endpoints"]
    with started([*ENGINE, "serve", str(folder), *flags], port) as server:
        yield server


def requests_by(server: Server, reason: str) -> Counter[str]:
    """Finished requests of each engine, as /metrics counts them."""
    text = httpx.get(f"{server.url}/metrics", timeout=60).text
    pattern = rf'vllm:request_success_total{{engine="(\d)",finished_reason="{reason}".*}} (\S+)'
    return Counter({engine: int(float(n)) for engine, n in re.findall(pattern, text)})


def running(server: Server, engine: str) -> float:
    text = httpx.get(f"{server.url}/metrics", timeout=60).text
    match = re.search(rf'vllm:num_requests_running{{engine="{engine}".*}} (\S+)', text)
    assert match is not None
    return float(match[1])


def load(server: Server) -> int:
    """How many requests wait for their answers."""
    return int(httpx.get(f"{server.url}/load", timeout=60).json()["server_load"])


async def answers(server: Server, count: int, max_tokens: int) -> list[httpx.Response]:
    body = {"model": "tiny", "prompt": "a b", "max_tokens": max_tokens, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as http:
        return await asyncio.gather(
            *(http.post("/v1/completions", json=body) for _ in range(count))
        )


async def test_replicas_share_the_load_and_outlive_each_other(server: Server) -> None:
    planned = [line.split()[0] for line in processes(PLANNED)]
    assert sorted(role_of(process.cmdline()) for process in server.tree()) == sorted(planned)
    for response in await answers(server, 8, 10):
        assert response.status_code == 200
    before = requests_by(server, "length")
    assert sum(before.values()) == 8
    assert min(before["0"], before["1"]) > 0
    source = DebugSource(server.url)
    for engine in (0, 1):
        source.engine = engine
        scheduler = (await source.fetch()).scheduler
        assert (scheduler.engine, scheduler.num_engines) == (engine, 2)
        assert scheduler.num_steps > 0
    await source.aclose()
    assert httpx.get(f"{server.url}/debug/blocks?engine=2", timeout=60).status_code == 404

    victim = server.process_of("EngineCore_DP1")
    victim.suspend()  # what it is given stays with it until it is killed
    asked = asyncio.create_task(answers(server, 6, 20))

    def has_answered_its_share() -> bool:
        """All have come, and what the other one was given is done."""
        done = requests_by(server, "length")["0"] - before["0"]
        return bool(done) and done + load(server) == 6 and not running(server, "0")

    await until(has_answered_its_share, START_TIMEOUT_S)
    victim.kill()
    results = await asked
    listed = httpx.get(f"{server.url}/debug/requests", timeout=60)  # of those that are there
    assert (listed.status_code, listed.json()["data"]) == (200, [])
    failed = [response for response in results if response.status_code == 500]
    assert {response.json()["error"]["message"] for response in failed} == {
        "EngineCore_DP1, the replica that had this request, died; send the request again."
    }
    assert len([response for response in results if response.status_code == 200]) + len(failed) == 6
    assert requests_by(server, "error") == {"0": 0, "1": len(failed)}

    wait_for(lambda: "serves again" in server.text, START_TIMEOUT_S)
    for response in await answers(server, 4, 10):
        assert response.status_code == 200
    assert requests_by(server, "length")["1"] > before["1"]
    assert server.stop() == 0
    report = parse_lines(server.lines)
    assert (report.outcome, report.facts.data_parallel_size) == (Outcome.READY, 2)
    assert "own-replica-died" in [warning.id for warning in report.insight.warnings]
    assert {"EngineCore_DP0", "EngineCore_DP1"} <= {process.name for process in report.processes}
