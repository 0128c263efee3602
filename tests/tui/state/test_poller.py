from __future__ import annotations

import asyncio

from textual.message import Message

from app.client.errors import BadAnswer
from app.client.metrics.sample import MetricsSample
from tests.tui.scripted import ScriptedSource
from tui.messages import Disconnected, SampleArrived
from tui.state.poller import LONGEST_BACKOFF_S, MetricsPoller, backoff_s


async def test_messages_follow_the_script_and_the_source_is_closed() -> None:
    source = ScriptedSource()
    posted: asyncio.Queue[Message] = asyncio.Queue()
    poller = MetricsPoller(source, posted.put_nowait, interval_s=0.0)
    error = BadAnswer("nonsense")
    source.then(MetricsSample(1.0, "vllm"), error, error, MetricsSample(2.0, "vllm"), error)
    task = asyncio.create_task(poller.run())
    messages = [await posted.get() for _ in range(5)]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert source.is_closed
    kinds = [type(message) for message in messages]
    assert kinds == [SampleArrived, Disconnected, Disconnected, SampleArrived, Disconnected]
    failures = [m.num_failures for m in messages if isinstance(m, Disconnected)]
    assert failures == [1, 2, 1]
    assert [m.sample.time_s for m in messages if isinstance(m, SampleArrived)] == [1.0, 2.0]


def test_backoff_doubles_up_to_its_limit() -> None:
    assert [backoff_s(0.25, n) for n in (1, 2, 3)] == [0.25, 0.5, 1.0]
    assert backoff_s(0.5, 1000) == LONGEST_BACKOFF_S
    assert backoff_s(10.0, 1) == LONGEST_BACKOFF_S


class Paced:
    """Waits by itself, as a recording does."""

    is_paced = True

    def __init__(self) -> None:
        self.num_scrapes = 0

    async def scrape(self) -> MetricsSample:
        self.num_scrapes += 1
        await asyncio.sleep(0)
        return MetricsSample(float(self.num_scrapes), "vllm")

    async def aclose(self) -> None:
        """Nothing is open."""


async def test_a_source_that_waits_by_itself_is_not_made_to_wait() -> None:
    posted: asyncio.Queue[Message] = asyncio.Queue()
    poller = MetricsPoller(Paced(), posted.put_nowait, interval_s=3600.0)
    task = asyncio.create_task(poller.run())
    messages = [await posted.get() for _ in range(20)]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    times = [m.sample.time_s for m in messages if isinstance(m, SampleArrived)]
    assert times == [float(number) for number in range(1, 21)]
