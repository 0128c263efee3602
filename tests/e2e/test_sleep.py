"""A server that is put to sleep and woken over HTTP: one engine, and copies behind API servers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.client.server import scrape_metrics
from app.client.sleep_mode import is_sleeping, put_to_sleep, wake_up
from logparse import Outcome, parse_lines
from tests.e2e.running_server import Server, gauge, health, tiny_server
from tests.waiting import wait_for

KEY = "secret-of-the-test"
HEADERS = {"Authorization": f"Bearer {KEY}"}
SERVES_AGAIN = re.compile(r"DPCoordinator \(pid \d+\) serves again")
RESTART_TIMEOUT_S = 180
RUNNING = 'vllm:num_requests_running{engine="0",model_name="tiny"}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("model")
    with tiny_server(folder, "--enable-sleep-mode", env={"STOKER_API_KEY": KEY}) as running:
        yield running


def ask(server: Server, **body: Any) -> httpx.Response:
    body = {"prompt": "a b c", "max_tokens": 6, "temperature": 0, "ignore_eos": True, **body}
    return httpx.post(f"{server.url}/v1/completions", json=body, headers=HEADERS, timeout=120)


def text(server: Server) -> str:
    answer = ask(server)
    assert answer.status_code == 200, answer.text
    found: str = answer.json()["choices"][0]["text"]
    return found


@pytest.mark.parametrize("level", [1, 2])
def test_asleep_it_refuses_requests_and_stays_healthy(server: Server, level: int) -> None:
    wanted = text(server)
    put_to_sleep(server.url, level, "abort", api_key=KEY)
    assert is_sleeping(server.url, api_key=KEY)
    assert health(server.url) == 200
    assert scrape_metrics(server.url, api_key=KEY).sleep_level == level
    for body in ({}, {"stream": True}):
        refused = ask(server, **body)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        assert refused.json()["error"]["code"] == "server_asleep"
        assert "POST /wake_up" in refused.json()["error"]["message"]
    wake_up(server.url, api_key=KEY)
    assert not is_sleeping(server.url, api_key=KEY)
    assert scrape_metrics(server.url, api_key=KEY).sleep_level == 0
    assert text(server) == wanted


def test_the_key_is_wanted_and_mistakes_are_named(server: Server) -> None:
    for method, path in (("POST", "/sleep"), ("POST", "/wake_up"), ("GET", "/is_sleeping")):
        assert httpx.request(method, f"{server.url}{path}", timeout=60).status_code == 401
    for query, word in (("level=3", "1 or 2"), ("mode=now", "abort, wait or keep")):
        answer = httpx.post(f"{server.url}/sleep?{query}", headers=HEADERS, timeout=60)
        assert (answer.status_code, word in answer.text) == (400, True)
    answer = httpx.post(f"{server.url}/wake_up?tags=all", headers=HEADERS, timeout=60)
    assert (answer.status_code, "weights or kv_cache" in answer.text) == (400, True)
    assert not is_sleeping(server.url, api_key=KEY)


@pytest.mark.parametrize(
    ("mode", "count", "status"), [("abort", 64, 503), ("wait", 1, 200), ("keep", 1, 200)]
)
async def test_what_becomes_of_a_request_that_runs(
    server: Server, mode: str, count: int, status: int
) -> None:
    """One that is to be cut off is so long that it cannot end by itself before."""
    body = {"prompt": "a", "max_tokens": 400, "ignore_eos": True, "n": count}
    async with httpx.AsyncClient(base_url=server.url, headers=HEADERS, timeout=120) as http:
        asked = asyncio.create_task(http.post("/v1/completions", json=body))
        await asyncio.to_thread(wait_for, lambda: asked.done() or gauge(server.url, RUNNING) > 0)
        await http.post("/sleep", params={"mode": mode})
        if mode != "keep":
            await asked
        await http.post("/wake_up")
        answer = await asked
    assert answer.status_code == status, answer.text
    document = answer.json()
    if status == 200:
        assert document["usage"]["completion_tokens"] == 400
    else:
        assert document["error"]["code"] == "server_asleep"


def test_the_lines_are_those_that_stoker_logs_knows(server: Server) -> None:
    put_to_sleep(server.url, 2, "abort", api_key=KEY)
    wake_up(server.url, api_key=KEY)
    wait_for(lambda: "seconds to wake up tags ['kv_cache', 'weights']." in server.text)
    assert "seconds to fall asleep." in server.text
    assert "GiB memory is still in use." in server.text
    report = parse_lines(server.lines)
    assert report.outcome is Outcome.READY
    assert isinstance(report.facts.model_load_s, float)  # waking is no second load


def test_copies_behind_several_api_servers_sleep_together(tmp_path: Path) -> None:
    flags = ("--data-parallel-size", "2", "--enable-sleep-mode")
    with tiny_server(tmp_path / "tiny", *flags) as server:
        wanted = text(server)
        put_to_sleep(server.url, 2, "abort")
        wait_for(lambda: scrape_metrics(server.url).sleep_level == 2)
        # Whichever API server takes the connection, and whatever it knows already.
        assert {ask(server).status_code for _ in range(8)} == {503}
        assert is_sleeping(server.url)
        server.engine_core().kill()  # which is started again, and joins the other's sleep
        wait_for(lambda: server.text.count("seconds to fall asleep.") == 3, RESTART_TIMEOUT_S)
        wait_for(lambda: scrape_metrics(server.url).sleep_level == 2)
        server.process_of("DPCoordinator").kill()  # the new one learns who sleeps
        wait_for(lambda: len(SERVES_AGAIN.findall(server.text)) == 1, RESTART_TIMEOUT_S)
        wait_for(lambda: scrape_metrics(server.url).sleep_level == 2)
        wake_up(server.url)
        wait_for(lambda: scrape_metrics(server.url).sleep_level == 0)
        wait_for(lambda: ask(server).status_code == 200)
        assert text(server) == wanted


def test_without_the_flag_it_never_sleeps(tmp_path: Path) -> None:
    with tiny_server(tmp_path / "tiny") as server:
        answer = httpx.post(f"{server.url}/sleep", timeout=60)
        assert (answer.status_code, "--enable-sleep-mode" in answer.text) == (400, True)
