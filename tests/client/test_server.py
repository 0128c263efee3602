from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from app.client.errors import (
    BadAnswer,
    BadStatus,
    Unauthorized,
    Unreachable,
)
from app.client.metrics.sample import MetricsSample
from app.client.server import (
    HealthStatus,
    MetricsSource,
    check_health,
    list_models,
    scrape_metrics,
    server_version,
)
from tests.client.local_server import Answer, LocalServer, serving

METRICS = b"vllm:num_requests_running 3\n"


def answering(status: int, text: str) -> httpx.MockTransport:
    return httpx.MockTransport(lambda _request: httpx.Response(status, text=text))


@pytest.mark.parametrize(
    ("status", "body", "health"),
    [
        (200, "", HealthStatus.READY),
        (503, '{"status":"starting"}', HealthStatus.STARTING),
        (503, '{"error":{"message":"Loading model","code":503}}', HealthStatus.STARTING),
        (503, "", HealthStatus.DEAD),
        (503, '{"error":{"message":"EngineCore died"}}', HealthStatus.DEAD),
        (500, "starting", HealthStatus.DEAD),
        (404, "", HealthStatus.UNREACHABLE),
    ],
)
def test_health(status: int, body: str, health: HealthStatus) -> None:
    assert check_health("http://h", transport=answering(status, body)) is health


def test_health_of_a_closed_port() -> None:
    with serving({}) as server:
        url = server.url
    assert check_health(url) is HealthStatus.UNREACHABLE


def test_models_and_version() -> None:
    assert list_models("h", transport=answering(200, '{"data":[{"id":"a"},{"id":"b"}]}')) == [
        "a",
        "b",
    ]
    assert server_version("h", transport=answering(200, '{"version":"0.30.0"}')) == "0.30.0"
    assert server_version("h", transport=answering(404, "")) is None
    with pytest.raises(BadAnswer):
        list_models("h", transport=answering(200, "<html>"))


@pytest.mark.parametrize(
    "body",
    [
        '{"error":{"message":"no such key","type":"t","param":null,"code":401}}',
        '{"object":"error","message":"no such key","code":401}',
        '{"error":"no such key"}',
        '{"detail":"no such key"}',
        "no such key",
    ],
)
def test_error_bodies(body: str) -> None:
    with pytest.raises(Unauthorized) as caught:
        list_models("h", transport=answering(401, body))
    assert (caught.value.status, caught.value.detail) == (401, "no such key")
    with pytest.raises(BadStatus) as other:
        scrape_metrics("h", transport=answering(501, body))
    assert not isinstance(other.value, Unauthorized)


def test_scrape_of_something_else() -> None:
    with pytest.raises(BadAnswer, match="no metrics of an inference server"):
        scrape_metrics("h", transport=answering(200, "node_cpu 1\n"))


def test_scrape_over_a_real_connection() -> None:
    with serving({"/metrics": lambda _call: Answer([METRICS])}) as server:
        assert scrape_metrics(server.url).running == 3
    with pytest.raises(Unreachable, match="connection refused"):
        scrape_metrics(server.url)


async def test_source_lives_through_a_restart() -> None:
    server = LocalServer({"/metrics": lambda _call: Answer([METRICS])})
    server.start()
    async with MetricsSource(server.url, timeout_s=5.0) as source:
        first = await source.scrape()
        server.stop()
        with pytest.raises(Unreachable):
            await source.scrape()
        server.start()
        again = await source.scrape()
    server.stop()
    assert first.running == again.running == 3
    assert again.time_s > first.time_s


def scraped(answer: Any) -> MetricsSample:
    async def ask() -> MetricsSample:
        async with MetricsSource("http://h:1", transport=httpx.MockTransport(answer)) as source:
            return await source.scrape()

    return asyncio.run(ask())


def test_router_is_asked_for_each_loaded_model() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url.raw_path.decode()))
        if request.url.path == "/models":
            states = (("qwen", "loaded"), ("llama", "loaded"), ("gemma", "unloaded"))
            data = [{"id": name, "status": {"value": state}} for name, state in states]
            return httpx.Response(200, json={"data": data})
        model = request.url.params.get("model")
        if model is None:
            error = {"code": 400, "message": "model name is missing from the request"}
            return httpx.Response(400, json={"error": error})
        number = {"qwen": 2, "llama": 3}[model]
        return httpx.Response(200, text=f"llamacpp:requests_processing {number}\n")

    found = scraped(answer)
    assert (found.engine, found.running, found.model) == ("llama.cpp", 5, "llama, qwen")
    assert [(e.name, e.running) for e in found.engines] == [("llama", 3), ("qwen", 2)]
    assert not any("gemma" in path for path in asked), "a question would load the model"
    assert all("autoload=false" in path for path in asked if "model=" in path)


def test_model_that_the_metrics_do_not_name_is_asked_for_once() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "/models/small-q4.gguf"}]})
        return httpx.Response(200, text="llamacpp:requests_processing 0\n")

    async def twice() -> list[MetricsSample]:
        async with MetricsSource("http://h:1", transport=httpx.MockTransport(answer)) as source:
            return [await source.scrape(), await source.scrape()]

    assert [found.model for found in asyncio.run(twice())] == ["small-q4.gguf"] * 2
    assert asked == ["/metrics", "/v1/models", "/metrics"]
