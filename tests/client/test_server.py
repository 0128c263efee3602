from __future__ import annotations

import httpx
import pytest

from app.client.errors import BadAnswer, BadStatus, Unauthorized, Unreachable
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
