"""The throughput lines: what each engine did in the last interval, in vLLM's words.

Silent while an engine is idle, after one line of zeros that shows the work has ended.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from engine.frontend.iteration_stats import IterationStats
from engine.logger import get_logger
from engine.messages import SchedulerStats

logger = get_logger(__name__)

# Prefix-cache lookups that the hit rate looks back over, about one per request.
_HIT_RATE_LOOKUPS = 1000


@dataclass(frozen=True, slots=True)
class _Throughput:
    prompt: float
    generation: float

    @property
    def is_zero(self) -> bool:
        return self.prompt == 0 and self.generation == 0


class StatLogger:
    """Adds up steps (a StatSink) and writes a line per engine. `device` is CPU or GPU."""

    def __init__(
        self, device: str, num_engines: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engines = [_EngineTotals(device, rank, clock) for rank in range(num_engines)]

    def record(
        self, scheduler: SchedulerStats | None, iteration: IterationStats, engine: int = 0
    ) -> None:
        self._engines[engine].record(scheduler, iteration)

    async def run(self, interval_s: float) -> None:
        """Write the lines every `interval_s` seconds, until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            self.log()

    def log(self) -> None:
        """Write a line per engine for the time since the last call; DEBUG where nothing happens."""
        for engine in self._engines:
            engine.log()


class _EngineTotals:
    def __init__(self, device: str, rank: int, clock: Callable[[], float]) -> None:
        self._device = device
        self._rank = rank
        self._clock = clock
        self._since = clock()
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._last = _Throughput(0.0, 0.0)
        self._scheduler = SchedulerStats()
        self._lookups: deque[tuple[int, int]] = deque(maxlen=_HIT_RATE_LOOKUPS)

    def record(self, scheduler: SchedulerStats | None, iteration: IterationStats) -> None:
        self._prompt_tokens += iteration.num_computed_prompt_tokens
        self._generation_tokens += iteration.num_generation_tokens
        if scheduler is None:
            return
        self._scheduler = scheduler
        if scheduler.prefix_cache_queries_delta:
            self._lookups.append(
                (scheduler.prefix_cache_queries_delta, scheduler.prefix_cache_hits_delta)
            )

    def log(self) -> None:
        now = self._clock()
        elapsed = max(now - self._since, 1e-9)
        rates = _Throughput(self._prompt_tokens / elapsed, self._generation_tokens / elapsed)
        is_idle = rates.is_zero and self._last.is_zero
        self._since, self._last = now, rates
        self._prompt_tokens = self._generation_tokens = 0
        write = logger.debug if is_idle else logger.info
        write(
            "Engine %03d: Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f "
            "tokens/s, Running: %d reqs, Waiting: %d reqs, %s KV cache usage: %.1f%%, Prefix cache "
            "hit rate: %.1f%%",
            self._rank,
            rates.prompt,
            rates.generation,
            self._scheduler.num_running_reqs,
            self._scheduler.num_waiting_reqs,
            self._device,
            self._scheduler.kv_cache_usage * 100,
            self._hit_rate() * 100,
        )

    def _hit_rate(self) -> float:
        queries = sum(queried for queried, _ in self._lookups)
        return sum(hit for _, hit in self._lookups) / queries if queries else 0.0
