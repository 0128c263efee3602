"""Against a small server that answers Prometheus' API, and against a real one if there is one."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from app.client.errors import BadAnswer, BadStatus, ClientError, Unauthorized, Unreachable
from app.client.metrics.names import HISTOGRAMS
from app.client.metrics.sample import MetricsSample, read_sample
from app.client.watch.prometheus import Instance, PrometheusServer, PrometheusSource
from engine.machine.ports import free_port
from tests.client.local_server import Answer, Call, LocalServer, serving


class Api:
    """Scrapes are noted by the test; queries are told apart by their shape."""

    def __init__(self) -> None:
        self.scrapes: list[tuple[float, str]] = []
        self.is_up = True
        self.queries: list[str] = []

    def scrape(self, age_s: float, running: int, tokens: int) -> None:
        text = f"vllm:num_requests_running {running}\nvllm:generation_tokens_total {tokens}\n"
        self.scrapes.append((round(time.time() - age_s, 3), text))

    def answer(self, call: Call) -> Answer:
        query = parse_qs(call.body.decode())["query"][0]
        self.queries.append(query)
        if "count by" in query:
            result: list[Any] = [
                {"metric": {"job": "vllm", "instance": "gpu:1"}, "value": [0, "1"]}
            ]
        elif "^up$" in query:
            value = str(int(self.is_up))
            result = [{"metric": {"__name__": "up"}, "value": [time.time(), value]}]
        else:
            length = re.search(r"\[(\d+)s\]$", query)
            assert length is not None
            result = self._raw(time.time() - int(length[1]))
        document = {"status": "success", "data": {"resultType": "matrix", "result": result}}
        return Answer([json.dumps(document).encode()], content_type="application/json")

    def _raw(self, start_s: float) -> list[Any]:
        series: dict[str, list[Any]] = {}
        for time_s, text in self.scrapes:
            for line in text.splitlines() if time_s >= start_s else ():
                name, value = line.split()
                series.setdefault(name, []).append([time_s, value])
        labels = {"job": "vllm", "instance": "gpu:1", "model_name": "m"}
        return [{"metric": {"__name__": n, **labels}, "values": v} for n, v in series.items()]


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def server(api: Api) -> Iterator[LocalServer]:
    with serving({"/api/v1/query": api.answer}) as local:
        yield local


@contextlib.asynccontextmanager
async def source_of(server: LocalServer, interval_s: float = 0.01) -> Any:
    prometheus = PrometheusServer(server.url)
    source = PrometheusSource(prometheus, Instance("vllm", "gpu:1"), interval_s=interval_s)
    async with contextlib.aclosing(source):
        yield source


async def test_instances_are_found_through_the_selector(api: Api, server: LocalServer) -> None:
    prometheus = PrometheusServer(server.url, selector='{job="vllm"}')
    assert await prometheus.instances() == [Instance("vllm", "gpu:1")]
    assert ',job="vllm"}' in api.queries[0]
    watched = prometheus.watch(Instance("vllm", "gpu:1"))
    assert (watched.name, watched.url) == ("gpu:1", f"gpu:1, job vllm, through {server.url}")


async def test_a_sample_has_the_time_and_the_numbers_of_its_scrape(
    api: Api, server: LocalServer
) -> None:
    api.scrape(30.0, running=2, tokens=100)
    api.scrape(15.0, running=3, tokens=400)
    async with source_of(server) as source:
        past = await source.past()
        assert [(s.running, s.generation_tokens) for s in past] == [(2, 100), (3, 400)]
        assert past[1].time_s - past[0].time_s == pytest.approx(15.0, abs=0.01)
        assert 14.0 < time.monotonic() - past[1].time_s < 600.0
        assert past[1].model == "m"
    assert 'job="vllm",instance="gpu:1"' in api.queries[0]


async def test_scrape_waits_for_the_next_scrape_of_prometheus(
    api: Api, server: LocalServer
) -> None:
    api.scrape(5.0, running=1, tokens=10)
    async with source_of(server) as source:
        assert (await source.scrape()).running == 1
        pending = asyncio.ensure_future(source.scrape())
        while len(api.queries) < 6:
            await asyncio.sleep(0.01)
        assert not pending.done()
        api.scrape(0.0, running=2, tokens=20)
        assert (await pending).running == 2


async def test_a_target_that_is_down_is_said_to_be_down(api: Api, server: LocalServer) -> None:
    api.scrape(5.0, running=1, tokens=10)
    async with source_of(server) as source:
        await source.scrape()
        api.is_up = False
        with pytest.raises(Unreachable, match="gpu:1 is down"):
            await source.scrape()
    async with source_of(server) as source:  # its last numbers are not shown as new
        with pytest.raises(Unreachable, match="gpu:1 is down"):
            await source.scrape()


async def test_no_numbers_at_all(server: LocalServer) -> None:
    async with source_of(server) as source:
        with pytest.raises(Unreachable, match="no new numbers"):
            await source.scrape()


@pytest.mark.parametrize(
    ("login", "header"),
    [("token-1", "Bearer token-1"), ("user:pass", "Basic dXNlcjpwYXNz"), (None, None)],
)
async def test_login(api: Api, server: LocalServer, login: str | None, header: str | None) -> None:
    await PrometheusServer(server.url, login=login).instances()
    assert server.calls[0].headers.get("Authorization") == header
    assert "pass" not in server.calls[0].path


async def test_errors_carry_the_words_of_the_server() -> None:
    bad = json.dumps({"status": "error", "errorType": "bad_data", "error": "parse error: x"})
    await refused(Answer([bad.encode()], 400), BadStatus, "parse error: x")
    await refused(Answer([b""], 401), Unauthorized, "401")
    await refused(Answer([b"<html>"]), BadAnswer, "does not answer as a Prometheus")


async def refused(answer: Answer, kind: type[ClientError], message: str) -> None:
    with serving({"/api/v1/query": lambda _call: answer}) as server:
        prometheus = PrometheusServer(server.url)
        with pytest.raises(kind, match=message):
            await prometheus.instances()


@contextlib.contextmanager
def real_prometheus(target: str, folder: Path) -> Iterator[str]:
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("no prometheus here")
    config, port = folder / "prometheus.yml", free_port()
    config.write_text(
        "global: {scrape_interval: 250ms, scrape_timeout: 250ms}\n"
        f"scrape_configs:\n- job_name: engines\n  static_configs: [{{targets: ['{target}']}}]\n"
    )
    words = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    words.append(f"--web.listen-address=127.0.0.1:{port}")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([binary, *words], stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


async def first_instance(server: PrometheusServer) -> Instance:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with contextlib.suppress(Unreachable, BadStatus):
            if found := await server.instances():
                return found[0]
        await asyncio.sleep(0.1)
    raise AssertionError("Prometheus has not scraped anything")


@pytest.mark.slow
async def test_a_real_prometheus_gives_the_numbers_of_a_real_vllm(
    shared_folder: Path, tmp_path: Path
) -> None:
    text = (shared_folder / "metrics" / "vllm-0.30.0-busy.txt").read_text()
    content = "text/plain; version=0.0.4"
    target = LocalServer({"/metrics": lambda _call: Answer([text.encode()], content_type=content)})
    target.start()
    try:
        with real_prometheus(target.url.partition("://")[2], tmp_path) as url:
            server = PrometheusServer(url, selector='job="engines"')
            instance = await first_instance(server)
            source = PrometheusSource(server, instance, interval_s=0.05)
            async with contextlib.aclosing(source):
                first, second = await source.scrape(), await source.scrape()
                target.stop()
                with pytest.raises(Unreachable, match="is down"):
                    await scrape_on(source)
    finally:
        target.stop()
    direct = read_sample(text, first.time_s)
    assert direct is not None
    assert without_sums(first) == without_sums(direct)
    assert 0 < second.time_s - first.time_s < 600


async def scrape_on(source: PrometheusSource) -> None:
    while True:
        await source.scrape()


def without_sums(sample: MetricsSample) -> MetricsSample:
    """Sums of histograms are added in another order."""
    replaced = {
        name: dataclasses.replace(getattr(sample, name), sum=0.0)
        for name in HISTOGRAMS
        if getattr(sample, name) is not None
    }
    return dataclasses.replace(sample, **replaced)
