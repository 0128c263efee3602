"""Sends the requests of a batch, so many at once, and writes down what comes back.

A server that is too busy is asked again when it says so; one that is gone for a while is waited
for. What a server answers for good, an error included, is an answer.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from app.batch.files import AnswerFile, BatchRequest

if TYPE_CHECKING:
    import httpx

_BUSY = (408, 425, 429)
"""Statuses of a server that is there, and that say nothing about the request itself."""

_AWAY = (502, 503, 504)
"""Those of a server that starts, stops or is gone."""

_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_LOOK_S = 0.1
_RESERVE = 1.5  # times the longest answer so far: less time left, and none is begun


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What to send where. `deadline_s` is of the monotonic clock; `retries` are tries after a
    failure of the server (500) or no answer within `timeout_s`, `patience_s` is how long one that
    is not there is waited for.
    """

    url: str
    api_key: str | None
    requests: Sequence[BatchRequest]
    concurrency: int
    retries: int
    timeout_s: float
    deadline_s: float | None = None
    patience_s: float = 300.0
    stop: threading.Event = field(default_factory=threading.Event)  # ends it from another thread


@dataclass(slots=True)
class Progress:
    """How far a batch is. `num_before` were answered by earlier runs."""

    total: int
    num_before: int
    num_done: int
    num_failed: int
    num_retried: int = 0
    begun_s: float = field(default_factory=time.monotonic)
    longest_s: float = 0.0

    @property
    def rate(self) -> float | None:
        """Answers a second of this run; None before the first."""
        count = self.num_done - self.num_before
        spent = time.monotonic() - self.begun_s
        return count / spent if count and spent > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """Forecast of what is left, at this run's rate."""
        rate = self.rate
        return None if rate is None else (self.total - self.num_done) / rate


class ServerGone(Exception):
    """No answer came for as long as was waited."""


def run_batch(
    plan: BatchPlan, answers: AnswerFile, on_progress: Callable[[Progress], None]
) -> Progress:
    """Send what has no answer yet; ServerGone when the server cannot be had.

    Returns early, with fewer answers than requests, where the deadline comes first, or a stop.
    """
    return asyncio.run(_Batch(plan, answers, on_progress).run())


class _Batch:
    def __init__(
        self, plan: BatchPlan, answers: AnswerFile, on_progress: Callable[[Progress], None]
    ) -> None:
        self._plan = plan
        self._answers = answers
        self._on_progress = on_progress
        self._last_seen_s = time.monotonic()
        num_before = len(answers.done)
        self._progress = Progress(len(plan.requests), num_before, num_before, answers.num_failed)

    async def run(self) -> Progress:
        plan = self._plan
        waiting = (entry for entry in plan.requests if entry.custom_id not in self._answers.done)
        self._on_progress(self._progress)
        num_streams = min(plan.concurrency, len(plan.requests) - len(self._answers.done))
        streams = [asyncio.create_task(self._stream(waiting)) for _ in range(num_streams)]
        stopped = asyncio.create_task(self._stopped())
        answered: asyncio.Future[Any] = asyncio.gather(*streams)
        try:
            # What is under way at the end of the time is sent again by the next run.
            done, _ = await asyncio.wait(
                {answered, stopped}, timeout=self._time_left(), return_when=asyncio.FIRST_COMPLETED
            )
            if answered in done:
                answered.result()
        finally:
            for task in (stopped, answered, *streams):
                task.cancel()
            await asyncio.gather(stopped, answered, *streams, return_exceptions=True)
        return self._progress

    async def _stopped(self) -> None:
        """Until somebody wants the end."""
        while not self._plan.stop.is_set():
            await asyncio.sleep(_LOOK_S)

    async def _stream(self, waiting: Iterator[BatchRequest]) -> None:
        """One request after the other over a connection of its own: in httpx's pool each request
        looks at all connections, some milliseconds for 32, while the server has nothing to do.
        """
        from app.client.transport import open_async_client

        plan = self._plan
        async with open_async_client(
            plan.url, api_key=plan.api_key, timeout_s=plan.timeout_s, max_connections=1
        ) as client:
            for request in waiting:  # shared: each stream takes the next one
                left = self._time_left()
                if left is not None and left < self._progress.longest_s * _RESERVE:
                    return
                begun_s = time.monotonic()
                answer = await self._ask(client, request)
                self._keep(request, answer, time.monotonic() - begun_s)

    def _keep(self, request: BatchRequest, answer: dict[str, Any], took_s: float) -> None:
        self._answers.append(request.custom_id, answer)
        progress = self._progress
        progress.num_done = len(self._answers.done)
        progress.num_failed = self._answers.num_failed
        if answer["response"] is not None:
            progress.longest_s = max(progress.longest_s, took_s)
        self._on_progress(progress)

    async def _ask(self, client: httpx.AsyncClient, request: BatchRequest) -> dict[str, Any]:
        """The answer that counts, after as many tries as it takes."""
        import httpx

        num_failures = 0
        away_since_s: float | None = None
        for attempt in itertools.count():
            retry_after = away = None
            try:
                response = await client.post(request.url, json=request.body)
            except (httpx.ReadTimeout, httpx.WriteTimeout):
                num_failures += 1
                if num_failures > self._plan.retries:
                    return _timed_out(self._plan.timeout_s)
            except httpx.RequestError as error:  # also redirects without an end, broken gzip
                away = str(error) or type(error).__name__
            else:
                status = response.status_code
                retry_after = response.headers.get("retry-after")
                num_failures += status == 500
                if status in _AWAY:
                    away = f"HTTP {status}"
                else:
                    self._last_seen_s = time.monotonic()
                    if self._is_final(status, num_failures):
                        return _answer(response)
            if away is not None:
                away_since_s = away_since_s or time.monotonic()
                self._check_patience(away_since_s, away)
            await self._pause(attempt, retry_after)
        raise AssertionError("it goes on until there is an answer")

    def _is_final(self, status: int, num_failures: int) -> bool:
        """Whether a status is the answer; else it is asked again."""
        return status not in _BUSY and (status != 500 or num_failures > self._plan.retries)

    def _check_patience(self, away_since_s: float, why: str) -> None:
        """ServerGone when a request has met no server for too long, and no other has either."""
        waited_s = time.monotonic() - max(away_since_s, self._last_seen_s)
        if waited_s > self._plan.patience_s:
            raise ServerGone(why)

    async def _pause(self, attempt: int, retry_after: str | None) -> None:
        self._progress.num_retried += 1
        longer = min(_LONGEST_PAUSE_S, _PAUSE_S * 2 ** min(attempt, 10))
        said = float(retry_after) if retry_after and retry_after.isdecimal() else 0.0
        await asyncio.sleep(min(max(said, longer), _LONGEST_PAUSE_S))

    def _time_left(self) -> float | None:
        deadline = self._plan.deadline_s
        return None if deadline is None else max(0.0, deadline - time.monotonic())


def _timed_out(timeout_s: float) -> dict[str, Any]:
    """OpenAI's form of a request that never was answered in time."""
    message = f"no answer came within {timeout_s:g} seconds; --timeout allows more"
    return {
        "id": _new_id(),
        "response": None,
        "error": {"code": "timeout", "message": message},
    }


def _new_id() -> str:
    return f"batch_req_{uuid.uuid4().hex}"


def _answer(response: httpx.Response) -> dict[str, Any]:
    """OpenAI's form of one answer."""
    try:
        body = response.json()
    except (ValueError, RecursionError):
        body = response.text
    return {
        "id": _new_id(),
        "response": {
            "status_code": response.status_code,
            "request_id": response.headers.get("x-request-id") or "",
            "body": body,
        },
        "error": None,
    }
