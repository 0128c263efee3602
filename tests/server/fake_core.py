"""A scripted EngineCore: same client interface, no process, no model, real asyncio timing.

Every request is answered with the same tokens, one per step; steps, aborts and death are the test's
to control.
"""

from __future__ import annotations

import asyncio
import math
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.errors import EngineDeadError, EngineError
from engine.messages import (
    EngineCoreEvent,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    EventType,
    FinishReason,
    HandshakeReady,
    PackedLogprobs,
    PrefillStats,
    SchedulerStats,
    TokenLogprobs,
)

NUM_BLOCKS = 65
HIDDEN_SIZE = 8
READY = HandshakeReady(
    max_model_len=512,
    num_gpu_blocks=NUM_BLOCKS,
    block_size=16,
    kv_cache_size_tokens=1040,
    kv_cache_max_concurrency=2.03,
    dtype="float32",
)


def fake_logprobs(token: int, num_top: int) -> TokenLogprobs:
    """The token is second best, behind its successor."""
    best = [(token + 1 - number) % 256 for number in range(num_top)]
    return TokenLogprobs([token, *best], [-1.0, *(-0.5 - 0.5 * i for i in range(num_top))], 2)


def fake_vector(token_ids: Sequence[int]) -> list[float]:
    """Depends on the tokens; of length 1."""
    values = [float(sum(token_ids) % (place + 7) + 1) for place in range(HIDDEN_SIZE)]
    return [value / math.hypot(*values) for value in values]


@dataclass
class _Running:
    request: EngineCoreRequest
    queued: float
    scheduled: float = 0.0
    num_done: int = 0


@dataclass
class FakeCore:
    """`answer` is repeated until max_tokens unless it holds an EOS or stop token."""

    answer: Sequence[int]
    step_s: float = 0.0005
    tokens_per_step: int = 1
    num_cached_tokens: int = 0
    start_error: EngineError | None = None
    requests: list[EngineCoreRequest] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    utilities: list[str] = field(default_factory=list)
    shutdowns: list[float] = field(default_factory=list)
    may_start: asyncio.Event = field(default_factory=asyncio.Event)
    is_paused: bool = False

    def __post_init__(self) -> None:
        self.may_start.set()
        self._running: dict[str, _Running] = {}
        self._dead = asyncio.Event()
        self._work = asyncio.Event()

    # ---- the client interface ---------------------------------------------------------------

    num_engines = 1

    def engine_of(self, request_id: str, /) -> int:
        return 0

    async def start(self) -> tuple[HandshakeReady, ...]:
        await self.may_start.wait()
        if self.start_error is not None:
            raise self.start_error
        return (READY,)

    async def add_request(self, request: EngineCoreRequest) -> None:
        self._require_alive()
        self.requests.append(request)
        self._running[request.request_id] = _Running(request, time.monotonic())
        self._work.set()

    async def abort_requests(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            if self._running.pop(request_id, None) is not None:
                self.aborted.append(request_id)

    async def get_output(self) -> EngineCoreOutputs:
        self._require_alive()
        while not self._running or self.is_paused:
            self._work.clear()
            await self._work.wait()
            self._require_alive()
        await asyncio.sleep(self.step_s)
        self._require_alive()
        return self._step()

    async def call_utility(
        self, method: str, engine: int = 0, /
    ) -> bool | int | float | str | None:
        self._require_alive()
        self.utilities.append(method)
        return not self._running

    async def shutdown(self, timeout_s: float) -> None:
        self.shutdowns.append(timeout_s)
        self.die()

    # ---- what tests do ----------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        return len(self._running)

    def die(self) -> None:
        self._dead.set()
        self._work.set()

    def resume(self) -> None:
        self.is_paused = False
        self._work.set()

    # ---- inside -----------------------------------------------------------------------------

    def _require_alive(self) -> None:
        if self._dead.is_set():
            raise EngineDeadError("EngineCore is gone (exit code -9).")

    def _step(self) -> EngineCoreOutputs:
        now = time.monotonic()
        outputs = [self._advance(running, now) for running in list(self._running.values())]
        used = sum(
            -(-(len(r.request.prompt_token_ids) + r.num_done) // 16) for r in self._running.values()
        )
        return EngineCoreOutputs(
            outputs=outputs,
            scheduler_stats=SchedulerStats(
                num_running_reqs=len(self._running),
                kv_cache_usage=used / (NUM_BLOCKS - 1),
                num_free_blocks=NUM_BLOCKS - 1 - used,
                num_cached_blocks=used,
                prefix_cache_queries_delta=sum(
                    o.prefill_stats.num_prompt_tokens for o in outputs if o.prefill_stats
                ),
                prefix_cache_hits_delta=sum(
                    o.prefill_stats.num_cached_tokens for o in outputs if o.prefill_stats
                ),
            ),
            timestamp=now,
        )

    def _advance(self, running: _Running, now: float) -> EngineCoreOutput:
        output = EngineCoreOutput(running.request.request_id, [])
        if not running.num_done:
            running.scheduled = now
            output.events = [
                EngineCoreEvent(EventType.QUEUED, running.queued),
                EngineCoreEvent(EventType.SCHEDULED, now),
            ]
            num_prompt = len(running.request.prompt_token_ids)
            output.prefill_stats = PrefillStats(num_prompt, min(self.num_cached_tokens, num_prompt))
            num_top = running.request.sampling_params.prompt_logprobs
            if num_top is not None:
                following = running.request.prompt_token_ids[1:]
                entries = [fake_logprobs(token, num_top) for token in following]
                output.prompt_logprobs = PackedLogprobs.pack(entries, num_top + 1)
        if running.request.pooling is not None:
            vector = fake_vector(running.request.prompt_token_ids)
            output.pooling_output = struct.pack(f"<{len(vector)}f", *vector)
            output.finish_reason = FinishReason.STOP
            del self._running[running.request.request_id]
            return output
        for _ in range(self.tokens_per_step):
            self._add_token(running, output)
            if output.finish_reason is not None:
                del self._running[running.request.request_id]
                break
        return output

    def _add_token(self, running: _Running, output: EngineCoreOutput) -> None:
        params = running.request.sampling_params
        token = self.answer[running.num_done % len(self.answer)]
        output.new_token_ids.append(token)
        if params.logprobs is not None:
            output.logprobs = [*(output.logprobs or ()), fake_logprobs(token, params.logprobs)]
        running.num_done += 1
        if running.num_done > params.min_tokens and token in running.request.eos_token_ids:
            output.finish_reason = FinishReason.STOP
        elif running.num_done > params.min_tokens and token in params.stop_token_ids:
            output.finish_reason, output.stop_reason = FinishReason.STOP, token
        elif running.num_done == params.max_tokens:
            output.finish_reason = FinishReason.LENGTH
