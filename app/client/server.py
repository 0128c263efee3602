"""Questions to a server: is it ready, what does it serve, what do its metrics say."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from app.client.errors import (
    BadAnswer,
    BadStatus,
    ClientError,
    ModelNotNamed,
    ServerLoading,
    status_error,
)
from app.client.metrics.exposition import KnownSeries, with_label
from app.client.metrics.sample import MetricsSample, read_sample
from app.client.terminal_text import clean_word, strip_escapes
from app.client.transport import (
    DEFAULT_TIMEOUT_S,
    connection_errors,
    normalise_base_url,
    open_async_client,
    open_client,
)

if TYPE_CHECKING:
    import httpx


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
    error = status_error(str(response.url), response.status_code, response.text)
    return HealthStatus.STARTING if isinstance(error, ServerLoading) else HealthStatus.DEAD


def list_models(
    base_url: str,
    *,
    api_key: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    transport: httpx.BaseTransport | None = None,
) -> list[str]:
    """The ids that GET /v1/models lists, in its order."""
    response = _get(base_url, "/v1/models", api_key, timeout_s, transport)
    if response.is_error:
        raise models_error(base_url, response)
    return _model_ids(response)


def models_error(
    base_url: str, response: httpx.Response, advice: str = ""
) -> BadStatus | BadAnswer:
    """What an error of GET /v1/models means: of 404, that this server cannot list its models."""
    if response.status_code != 404:
        return status_error(str(response.url), response.status_code, response.text)
    return BadAnswer(f"{base_url} has no /v1/models: is it an OpenAI-compatible server?{advice}")


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
        return clean_word(response.json()["version"])
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
        self._model: str | None = None
        self._has_asked_model = False

    async def scrape(self) -> MetricsSample:
        """One sample; raises ClientError when the server is away or refuses."""
        return await self.read(*await self.fetch())

    async def read(self, text: str, time_s: float) -> MetricsSample:
        """The sample in what `fetch` brought; a model that it does not name is asked for once."""
        sample = sample_of(text, time_s, f"{self._base_url}/metrics", self._known)
        if sample.model is None and not self._has_asked_model:
            self._has_asked_model = True
            with contextlib.suppress(ClientError):
                self._model = await self._first_model()
        return sample if sample.model else dataclasses.replace(sample, model=self._model)

    async def fetch(self) -> tuple[str, float]:
        """The text of one scrape and the time of its arrival; raises like `scrape`."""
        if self._client is None:
            # Importing and opening takes a tenth of a second, in which a screen can draw.
            self._client = await asyncio.to_thread(self._open)
        try:
            text = (await self._get("/metrics")).text
        except ModelNotNamed:
            text = await self._pages_of_models()
        return text, time.monotonic()

    async def _get(self, path: str, **query: str) -> httpx.Response:
        assert self._client is not None, "opened by `fetch`"
        with connection_errors(self._base_url):
            response = await self._client.get(path, params=query)
        if response.is_error:
            raise status_error(str(response.url), response.status_code, response.text)
        return response

    async def _first_model(self) -> str | None:
        names = _model_ids(await self._get("/v1/models"))
        return shown_name(names[0]) if names else None

    async def _pages_of_models(self) -> str:
        """A router's pages, one per model that is loaded: to ask for another would load it."""
        names = _loaded_models(await self._get("/models"))
        pages = []
        for name in names:
            with contextlib.suppress(BadStatus):  # it was unloaded meanwhile
                response = await self._get("/metrics", model=name, autoload="false")
                pages.append(with_label(response.text, "model_name", shown_name(name)))
        if not pages:
            raise ServerLoading(f"{self._base_url}/metrics", 503, "the router has no model loaded")
        return "\n".join(pages)

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def __aenter__(self) -> MetricsSource:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def shown_name(model: str) -> str:
    """The id; of a path, which llama-server takes for one, the last part."""
    return model.rsplit("/", 1)[-1] if model.startswith("/") else model


def _model_ids(response: httpx.Response) -> list[str]:
    try:
        return [strip_escapes(str(entry["id"])) for entry in response.json()["data"]]
    except (ValueError, KeyError, TypeError) as error:
        raise BadAnswer(f"{response.url} did not answer with a list of models") from error


def _loaded_models(response: httpx.Response) -> list[str]:
    """The models whose `status` says that they run; a server that tells none of them runs all."""
    names = _model_ids(response)
    states = [_load_state(entry) for entry in response.json()["data"]]
    running = ("loaded", "ready", "running", None)
    return [name for name, state in zip(names, states, strict=True) if state in running]


def _load_state(entry: Any) -> str | None:
    status = entry.get("status")
    value = status.get("value") if isinstance(status, dict) else status
    return value if isinstance(value, str) else None


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
    with connection_errors(base_url), client:
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
