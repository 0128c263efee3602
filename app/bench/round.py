"""One round of load on one server: a closed loop of N streams, or arrivals at a rate.

Brings back what every request did, what the server's counters did meanwhile, and what the client
itself cost. Judges nothing.
"""

from __future__ import annotations

import asyncio
import math
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from app.bench.prompts import Prompt
from app.bench.stream import RequestResult, StreamClient
from app.client.metrics.sample import MetricsSample

# What a server may not know. Without it the load is another one, which is said.
_OPTIONAL_FIELDS = ("ignore_eos", "stream_options")
_REFUSALS = ("HTTP 400", "HTTP 422")
_SETTLE_TRIES = 20
_SETTLE_S = 0.05


@dataclass(frozen=True, slots=True)
class Load:
    """`kind` is "concurrency" (streams at once), "rate" (requests per second) or "replay" (the
    prompts know when they are due; the value says how much faster).
    """

    kind: str
    value: float

    def __str__(self) -> str:
        return f"{self.kind} {self.value:g}{_UNITS.get(self.kind, '')}"


_UNITS = {"rate": "/s", "replay": "x"}


@dataclass(frozen=True, slots=True)
class Amount:
    """How much one round sends: a number of requests, or for how long new ones are sent."""

    num_prompts: int | None = None
    duration_s: float | None = None

    def num_for(self, load: Load) -> int | None:
        """Requests of a round, None when time decides. A trace has an end of its own."""
        if load.kind == "replay":
            return self.num_prompts or sys.maxsize
        if self.num_prompts is not None or self.duration_s is not None:
            return self.num_prompts
        if load.kind == "rate":
            return max(20, math.ceil(load.value * 20))
        return max(8, int(load.value) * 4)


@dataclass(frozen=True, slots=True)
class BenchTarget:
    """A server under load and how it is asked."""

    url: str
    model: str
    api_key: str | None = None
    is_chat: bool = False
    timeout_s: float = 600.0

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.is_chat else "/v1/completions"

    def body(self, prompt: Prompt) -> dict[str, object]:
        """The request: streamed, greedy, and never ended before its length."""
        content = prompt.content
        if self.is_chat and isinstance(content, str):
            content = [{"role": "user", "content": content}]
        return {
            "model": self.model,
            "messages" if self.is_chat else "prompt": content,
            "max_tokens": prompt.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


@dataclass(slots=True)
class Link:
    """The kept connections to one target, for all of its rounds, and the fields that it refuses."""

    target: BenchTarget
    client: StreamClient = field(init=False)
    refused: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        target = self.target
        self.client = StreamClient(target.url, target.api_key, target.timeout_s)

    async def send(self, prompt: Prompt, due_s: float) -> RequestResult:
        """What came of one request; a field that the server does not know is left out from then on.

        A request that is sent again for that counts from its second sending.
        """
        while True:
            outcome = RequestResult(due_s, time.monotonic(), wanted_tokens=prompt.output_tokens)
            outcome.expected_prompt_tokens = prompt.num_tokens
            body = self.target.body(prompt)
            sent = {name: value for name, value in body.items() if name not in self.refused}
            await self.client.send(self.target.path, sent, outcome)
            unknown = _refused_fields(outcome) & sent.keys()
            if not unknown:
                return outcome
            self.refused |= unknown
            due_s = time.monotonic()


def _refused_fields(outcome: RequestResult) -> set[str]:
    """The optional fields that an error answer names."""
    if outcome.error not in _REFUSALS:
        return set()
    return {name for name in _OPTIONAL_FIELDS if name in outcome.detail}


@dataclass(frozen=True, slots=True)
class Round:
    """What one round on one server did. `before` and `after` are None without /metrics."""

    target: BenchTarget
    load: Load
    outcomes: tuple[RequestResult, ...]
    cpu_s: float
    before: MetricsSample | None
    after: MetricsSample | None

    @property
    def duration_s(self) -> float:
        """From the first request that was due to the last end."""
        start = min(outcome.due_s for outcome in self.outcomes)
        return max(outcome.end_s for outcome in self.outcomes) - start


@dataclass(slots=True)
class Loader:
    """Sends one round; `on_done` hears of each finished request."""

    link: Link
    on_done: Callable[[], None] = lambda: None

    async def run(
        self, load: Load, prompts: Iterator[Prompt], duration_s: float | None, seed: str
    ) -> Round:
        """Send `prompts` until they end or `duration_s` is over, and wait for every answer."""
        target = self.link.target
        before = scrape(target)
        outcomes: list[RequestResult] = []

        async def send(prompt: Prompt, due_s: float) -> None:
            outcomes.append(await self.link.send(prompt, due_s))
            self.on_done()

        if load.kind == "concurrency":  # a connection is not what the first token waits for
            await self.link.client.connect_idle(int(load.value))

        cpu_s = time.process_time()
        end_s = time.monotonic() + (math.inf if duration_s is None else duration_s)
        if load.kind == "concurrency":
            await _closed_loop(send, prompts, int(load.value), end_s)
        else:
            await _open_loop(send, _arrivals(load, prompts, random.Random(seed)), end_s)
        cpu_s = time.process_time() - cpu_s
        after = await _settled(target)
        return Round(target, load, tuple(outcomes), cpu_s, before, after)


_Send = Callable[[Prompt, float], Awaitable[None]]


async def _closed_loop(send: _Send, prompts: Iterator[Prompt], streams: int, end_s: float) -> None:
    async def stream() -> None:
        for prompt in prompts:  # shared: each stream takes the next one when its last is done
            await send(prompt, time.monotonic())
            if time.monotonic() >= end_s:
                return

    await asyncio.gather(*(stream() for _ in range(streams)))


def _arrivals(
    load: Load, prompts: Iterator[Prompt], chance: random.Random
) -> Iterator[tuple[float, Prompt]]:
    """Each prompt and when it is due, in seconds: Poisson arrivals, or those of a trace."""
    due_s = 0.0
    for prompt in prompts:
        if load.kind == "replay":
            yield prompt.due_s / load.value, prompt
        else:
            yield due_s, prompt
            due_s += chance.expovariate(load.value)


async def _open_loop(send: _Send, arrivals: Iterator[tuple[float, Prompt]], end_s: float) -> None:
    """A request is due whether or not the client is in time for it."""
    start_s = time.monotonic()
    running: set[asyncio.Future[None]] = set()

    def forget(sending: asyncio.Future[None]) -> None:
        """A day has many; those that failed are kept, so that it is told."""
        if not sending.cancelled() and sending.exception() is None:
            running.discard(sending)

    for after_s, prompt in arrivals:
        due_s = start_s + after_s
        if due_s >= end_s:
            break
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        sending = asyncio.ensure_future(send(prompt, due_s))
        running.add(sending)
        sending.add_done_callback(forget)
    await asyncio.gather(*running)


async def _settled(target: BenchTarget) -> MetricsSample | None:
    """The counters once they show no request any more: some servers count a moment later."""
    for _ in range(_SETTLE_TRIES):
        sample = scrape(target)
        if sample is None or not sample.running:
            break
        await asyncio.sleep(_SETTLE_S)
    return sample


def scrape(target: BenchTarget) -> MetricsSample | None:
    """The server's counters; None where it has none."""
    from app.client.errors import ClientError
    from app.client.server import scrape_metrics

    try:
        return scrape_metrics(target.url, api_key=target.api_key)
    except ClientError:
        return None
