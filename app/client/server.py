"""Questions to a server: is it ready, what does it serve, what do its metrics say."""

from __future__ import annotations

import asyncio
import enum
import time
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from app.client.errors import BadAnswer, ClientError, status_error
from app.client.exposition import KnownSeries
from app.client.metrics import MetricsSample, read_sample
from app.client.transport import (
    DEFAULT_TIMEOUT_S,
    connection_errors,
    normalise_base_url,
    open_async_client,
    open_client,
)

if TYPE_CHECKING:
    import httpx

# Our engine says "starting"; llama-server says "Loading model" while it loads.
_STARTING_WORDS = ("starting", "loading")


class HealthStatus(enum.Enum):
    """What GET /health says; only READY means that requests are answered."""

    READY = "ready"
    STARTING = "starting"
    DEAD = "dead"
    UNREACHABLE = "unreachable"


def check_health(
    base_url: str,
    timeout_s: float = 2.0,
    *,
    api_key: str | None = None,
    transport: httpx.BaseTransport | None = None,
) -> HealthStatus:
    """Ask once; never raises for a server that is away."""
    try:
        response = _get(base_url, "/health", api_key, timeout_s, transport)
    except ClientError:
        return HealthStatus.UNREACHABLE
    if response.status_code == 200:
        return HealthStatus.READY
    if response.status_code < 500:
        return HealthStatus.UNREACHABLE  # something answers, but it is no inference server
    body = response.text.lower()
    is_starting = response.status_code == 503 and any(word in body for word in _STARTING_WORDS)
    return HealthStatus.STARTING if is_starting else HealthStatus.DEAD


def list_models(
    base_url: str,
    *,
    api_key: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    transport: httpx.BaseTransport | None = None,
) -> list[str]:
    """The ids that GET /v1/models lists, in its order."""
    response = _get_ok(base_url, "/v1/models", api_key, timeout_s, transport)
    try:
        return [str(entry["id"]) for entry in response.json()["data"]]
    except (ValueError, KeyError, TypeError) as error:
        raise BadAnswer(f"{response.url} did not answer with a list of models") from error


def first_model(
    base_url: str,
    *,
    api_key: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    transport: httpx.BaseTransport | None = None,
) -> str:
    """The model that answers when none is named: the first of the list."""
    models = list_models(base_url, api_key=api_key, timeout_s=timeout_s, transport=transport)
    if not models:
        raise BadAnswer(f"{base_url} lists no model")
    return models[0]


def server_version(
    base_url: str,
    *,
    api_key: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    transport: httpx.BaseTransport | None = None,
) -> str | None:
    """The version that GET /version reports, None where the server has no such endpoint."""
    response = _get(base_url, "/version", api_key, timeout_s, transport)
    if response.status_code == 404:
        return None
    if response.is_error:
        raise status_error(str(response.url), response.status_code, response.text)
    try:
        return str(response.json()["version"])
    except (ValueError, KeyError, TypeError):
        return None


def scrape_metrics(
    base_url: str,
    *,
    api_key: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    transport: httpx.BaseTransport | None = None,
) -> MetricsSample:
    """One sample of GET /metrics, stamped with the monotonic clock."""
    response = _get_ok(base_url, "/metrics", api_key, timeout_s, transport)
    return sample_of(response.text, time.monotonic(), str(response.url))


class MetricsSource:
    """One kept-alive connection that is scraped again and again (the dashboard's)."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._base_url = normalise_base_url(base_url)
        self._open = partial(
            open_async_client, base_url, api_key=api_key, timeout_s=timeout_s, transport=transport
        )
        self._client: httpx.AsyncClient | None = None
        self._known: KnownSeries = {}

    async def scrape(self) -> MetricsSample:
        """One sample; raises ClientError when the server is away or refuses."""
        text, time_s = await self.fetch()
        return sample_of(text, time_s, f"{self._base_url}/metrics", self._known)

    async def fetch(self) -> tuple[str, float]:
        """The text of one scrape and the time of its arrival; raises like `scrape`."""
        if self._client is None:
            # Importing and opening takes a tenth of a second, in which a screen can draw.
            self._client = await asyncio.to_thread(self._open)
        with connection_errors(self._base_url):
            response = await self._client.get("/metrics")
        if response.is_error:
            raise status_error(str(response.url), response.status_code, response.text)
        return response.text, time.monotonic()

    async def aclose(self) -> None:
        """Close the connection."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def __aenter__(self) -> MetricsSource:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()


def sample_of(
    text: str, time_s: float, origin: str, known: KnownSeries | None = None
) -> MetricsSample:
    """The sample in the text of a scrape; BadAnswer naming `origin` where there is none."""
    sample = read_sample(text, time_s, known)
    if sample is None:
        raise BadAnswer(f"{origin} holds no metrics of an inference server")
    return sample


def _get(
    base_url: str,
    path: str,
    api_key: str | None,
    timeout_s: float,
    transport: httpx.BaseTransport | None,
) -> httpx.Response:
    client = open_client(base_url, api_key=api_key, timeout_s=timeout_s, transport=transport)
    with connection_errors(str(client.base_url).rstrip("/")), client:
        return client.get(path)


def _get_ok(
    base_url: str,
    path: str,
    api_key: str | None,
    timeout_s: float,
    transport: httpx.BaseTransport | None,
) -> httpx.Response:
    response = _get(base_url, path, api_key, timeout_s, transport)
    if response.is_error:
        raise status_error(str(response.url), response.status_code, response.text)
    return response
