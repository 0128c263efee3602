"""Numbers that one step's outputs give: counts, latencies, and a summary of each finished request.

Owns the definitions of the intervals (those of vLLM's v1/metrics/stats.py); does not publish them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from engine.messages import EngineCoreEvent, EventType, FinishReason, MissCause, SchedulerStats


@dataclass(frozen=True, slots=True)
class FinishedRequestStats:
    """One finished request; seconds and tokens.

    queue: queued -> scheduled. prefill: scheduled -> first token. decode: first -> last token.
    inference: scheduled -> last token. e2e: arrival -> now. Preemptions stay inside. The vector
    of a pooling request stands for its first and last token; such a request has no `max_tokens`.
    """

    finish_reason: FinishReason
    e2e_latency_s: float
    queue_time_s: float
    prefill_time_s: float
    decode_time_s: float
    inference_time_s: float
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generation_tokens: int
    max_tokens: int | None
    num_preemptions: int

    @property
    def time_per_output_token_s(self) -> float:
        """Mean gap between this request's tokens, 0 when it has only one."""
        gaps = self.num_generation_tokens - 1
        return self.decode_time_s / gaps if gaps > 0 else 0.0


@dataclass(slots=True)
class IterationStats:
    """One step. A prompt counts when its first token appears, its cached tokens included."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    misses: list[MissCause] = field(default_factory=list)
    num_generation_tokens: int = 0
    first_token_latencies_s: list[float] = field(default_factory=list)
    inter_token_latencies_s: list[float] = field(default_factory=list)
    finished: list[FinishedRequestStats] = field(default_factory=list)
    num_aborted: int = 0
    num_failed: int = 0
    # One entry per finished API request, which may have had several samples.
    n_params: list[int] = field(default_factory=list)
    max_generation_tokens: list[int] = field(default_factory=list)

    @property
    def num_computed_prompt_tokens(self) -> int:
        """Prompt tokens that were not in the prefix cache."""
        return self.num_prompt_tokens - self.num_cached_tokens


class StatSink(Protocol):
    """Takes the numbers of each step (metrics, throughput line)."""

    def record(
        self, scheduler: SchedulerStats | None, iteration: IterationStats, engine: int = 0
    ) -> None:
        """Add one step of one engine; `scheduler` is None when nothing ran (a client left)."""


@dataclass(slots=True)
class ParentRequest:
    """The API request behind `n` samples of one prompt; counts them down."""

    n: int
    num_open: int = field(init=False)
    max_generation_tokens: int = 0

    def __post_init__(self) -> None:
        self.num_open = self.n

    def on_child_finished(self, num_generation_tokens: int, stats: IterationStats) -> None:
        """Note one finished sample; the last one reports for all."""
        self.num_open -= 1
        self.max_generation_tokens = max(self.max_generation_tokens, num_generation_tokens)
        if self.num_open == 0:
            stats.n_params.append(self.n)
            stats.max_generation_tokens.append(self.max_generation_tokens)


@dataclass(slots=True)
class RequestTimes:
    """Clocks of one request: `arrival_time` is wall clock, the rest EngineCore's monotonic."""

    arrival_time: float
    queued: float = 0.0
    scheduled: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0

    def on_events(self, events: list[EngineCoreEvent]) -> None:
        """Keep the first reading of each kind: later ones come from preemptions."""
        for event in events:
            if event.type is EventType.QUEUED and not self.queued:
                self.queued = event.timestamp
            elif event.type is EventType.SCHEDULED and not self.scheduled:
                self.scheduled = event.timestamp

    def on_tokens(self, timestamp: float, now: float, stats: IterationStats) -> None:
        """Note one output with tokens, at engine time `timestamp` and wall time `now`."""
        if not self.first_token:
            self.first_token = timestamp
            stats.first_token_latencies_s.append(max(0.0, now - self.arrival_time))
            self.last_token = timestamp
        else:
            self.on_later_tokens(timestamp, stats)

    def on_later_tokens(self, timestamp: float, stats: IterationStats) -> None:
        """The same for an output that is not the first."""
        stats.inter_token_latencies_s.append(timestamp - self.last_token)
        self.last_token = timestamp

    def on_vector(self, timestamp: float) -> None:
        """Note a pooling request's answer; it is no token, so no latency of tokens is counted."""
        self.first_token = self.last_token = timestamp
