"""The same samples out of a Prometheus server that scrapes the engines already.

Asks for the raw points of a time range, so a sample has the time and the numbers of the scrape that
Prometheus made; nothing is interpolated. One series of samples per instance of a job.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from app.client.errors import BadAnswer, Unreachable, status_error
from app.client.metrics import names as metric_names
from app.client.metrics.exposition import Exposition, SeriesValue
from app.client.metrics.sample import MetricsSample, sample_from
from app.client.terminal_text import strip_escapes
from app.client.transport import connection_errors, normalise_base_url, open_async_client
from app.client.watch.watched import WatchedServer

if TYPE_CHECKING:
    import httpx

PAST_S = 300
"""How far back the first question reaches; also what Prometheus itself takes for current."""

_TIMEOUT_S = 10.0
_SILENCE_S = 60.0
_REMEMBERED = "1h"  # a target that went down so lately is listed too
_SUFFIXES = "(_total|_bucket|_sum)?"


@dataclass(frozen=True, slots=True, order=True)
class Instance:
    """One target that Prometheus scrapes."""

    job: str
    instance: str


class PrometheusServer:
    """What every instance is asked through. `selector` are further label matchers.

    `login` is a bearer token, or USER:PASSWORD.
    """

    def __init__(
        self,
        url: str,
        *,
        selector: str = "",
        login: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = normalise_base_url(url)
        self._selector = selector.strip().removeprefix("{").removesuffix("}").strip(" ,")
        self._login = login
        self._transport = transport

    def open(self) -> httpx.AsyncClient:
        """A connection; the caller closes it."""
        client = open_async_client(self.url, timeout_s=_TIMEOUT_S, transport=self._transport)
        if self._login:
            client.headers["Authorization"] = _authorization(self._login)
        return client

    async def instances(self) -> list[Instance]:
        """The targets that export a number of running requests, in order."""
        seen = f"last_over_time({self.matchers(_names('running'))}[{_REMEMBERED}])"
        async with self.open() as client:
            query = f"count by (job, instance) ({seen})"
            found = await self.query(client, query)
        labels = [series["metric"] for series in found]
        return sorted(Instance(one.get("job", ""), one.get("instance", "")) for one in labels)

    def matchers(self, names: str, instance: Instance | None = None) -> str:
        """The series with a name that `names` matches, as far as the selector allows."""
        parts = [f"__name__=~{json.dumps(names)}"] if names else []
        if instance is not None:
            parts += [f"job={json.dumps(instance.job)}"]
            parts += [f"instance={json.dumps(instance.instance)}"]
        return "{" + ",".join([*parts, *([self._selector] if self._selector else [])]) + "}"

    async def query(self, client: httpx.AsyncClient, query: str) -> list[dict[str, Any]]:
        """The series that an instant query answers with."""
        with connection_errors(self.url):
            response = await client.post("/api/v1/query", data={"query": query})
        if response.is_error:
            raise status_error(self.url, response.status_code, response.text)
        try:
            result = response.json()["data"]["result"]
            return [{"metric": dict(series["metric"]), **series} for series in result]
        except (ValueError, KeyError, TypeError) as error:
            raise BadAnswer(f"{self.url} does not answer as a Prometheus server does") from error

    def watch(self, instance: Instance, interval_s: float = 1.0) -> WatchedServer:
        """One instance as a server to watch."""
        source = partial(PrometheusSource, self, instance, interval_s=interval_s)
        name, job = strip_escapes(instance.instance), strip_escapes(instance.job)
        return WatchedServer(
            name,
            f"{name}, job {job}, through {self.url}",
            open_source=source,
            past=partial(_past, source),
        )


class PrometheusSource:
    """The samples of one instance; `scrape` waits until Prometheus has made another one."""

    is_paced = True

    def __init__(
        self, server: PrometheusServer, instance: Instance, *, interval_s: float = 1.0
    ) -> None:
        self._server = server
        self._instance = instance
        self._client = server.open()
        self._interval_s = interval_s
        self._newest_s: float | None = None  # unix time
        # Prometheus gives unix times, screens count on the monotonic clock.
        self._offset_s = time.monotonic() - time.time()

    async def past(self, length_s: float = PAST_S) -> list[MetricsSample]:
        """Every sample of the last `length_s` seconds, the newest last."""
        series = await self._server.query(self._client, f"{self._matchers()}[{length_s:.0f}s]")
        found = []
        for unix_s, exposition in _by_time(series):
            sample = sample_from(exposition, unix_s + self._offset_s)
            if sample is not None:
                found.append(sample)
                self._newest_s = unix_s
        return found

    async def scrape(self) -> MetricsSample:
        """The next sample; Unreachable when Prometheus no longer gets one."""
        before_s, started_s = self._newest_s, time.monotonic()
        while True:
            if before_s is None:  # else a target that is down would look alive for PAST_S
                await self._check_up()
            since_s = PAST_S if before_s is None else max(1.0, time.time() - before_s + 1.0)
            samples = await self.past(since_s)
            if samples and self._newest_s != before_s:
                return samples[-1]
            await self._check_up()
            if before_s is None or time.monotonic() - started_s > _SILENCE_S:
                raise Unreachable(f"Prometheus has no new numbers of {self._instance.instance}")
            await asyncio.sleep(self._interval_s)

    async def aclose(self) -> None:
        await self._client.aclose()

    def _matchers(self) -> str:
        return self._server.matchers(_names(), self._instance)

    async def _check_up(self) -> None:
        up = self._server.matchers("^up$", self._instance)
        series = await self._server.query(self._client, up)
        if any(float(one["value"][1]) == 0 for one in series if "value" in one):
            raise Unreachable(f"Prometheus says that {self._instance.instance} is down")


async def _past(open_source: partial[PrometheusSource]) -> list[MetricsSample]:
    source = open_source()
    try:
        # The newest one is left to the first scrape.
        return (await source.past())[:-1]
    finally:
        await source.aclose()


def _by_time(series: list[dict[str, Any]]) -> list[tuple[float, Exposition]]:
    """The raw points regrouped: all series of one scrape have its time."""
    scrapes: dict[float, dict[str, list[SeriesValue]]] = {}
    try:
        for one in series:
            labels = {str(key): str(value) for key, value in one["metric"].items()}
            name = labels.pop("__name__")
            for unix_s, value in one["values"]:
                samples = scrapes.setdefault(float(unix_s), {})
                samples.setdefault(name, []).append(SeriesValue(labels, float(value)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadAnswer("Prometheus answered with series that cannot be read") from error
    return [
        (unix_s, Exposition({name: tuple(found) for name, found in samples.items()}, {}))
        for unix_s, samples in sorted(scrapes.items())
    ]


def _names(*of_fields: str) -> str:
    """A pattern for the names of these fields of any engine; without fields for all we read."""
    wanted = of_fields or tuple(field.name for field in fields(metric_names.MetricNames))
    names = {
        name for names in metric_names.ENGINES for field in wanted for name in getattr(names, field)
    }
    if not of_fields:
        names.update(metric_names.OWN_READING)
    return f"({'|'.join(re.escape(name) for name in sorted(names))}){_SUFFIXES}"


def _authorization(login: str) -> str:
    if ":" in login:  # which no bearer token has
        return f"Basic {base64.b64encode(login.encode()).decode()}"
    return f"Bearer {login}"
