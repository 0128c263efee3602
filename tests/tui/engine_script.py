"""A scripted /debug, and samples out of a real scheduler that has run for a while."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from typing import Any

from app.client.debug.documents import DebugSample, read_block_map, read_requests, read_scheduler
from app.client.debug.ranks import RankReading
from app.client.debug.trace import Trace
from app.client.errors import BadStatus, ClientError
from app.client.metrics.slots import Slot
from engine.sched.scheduler_output import ModelRunnerOutput
from engine.sched.snapshot import (
    StepHistory,
    blocks_document,
    requests_document,
    scheduler_document,
)
from tests.sched.workload import make_request, make_scheduler, next_token


class ScriptedDebug:
    """Each fetch takes the next entry; without one it waits, as a busy engine would."""

    def __init__(self, *entries: DebugSample | ClientError) -> None:
        self._script: asyncio.Queue[DebugSample | ClientError] = asyncio.Queue()
        self.num_fetches = 0
        self.cancelled: list[str] = []
        self.cancel_error: ClientError | None = None
        self.is_closed = False
        self.engine = 0
        self.traces: dict[str, Trace] = {}
        self.slot_answers: list[tuple[Slot, ...] | ClientError] = []
        self.then(*entries)

    def then(self, *entries: DebugSample | ClientError) -> None:
        for entry in entries:
            self._script.put_nowait(entry)

    async def fetch(self) -> DebugSample:
        entry = await self._script.get()
        self.num_fetches += 1
        if isinstance(entry, ClientError):
            raise entry
        return entry

    async def cancel(self, request_id: str) -> None:
        if self.cancel_error is not None:
            raise self.cancel_error
        self.cancelled.append(request_id)

    async def trace(self, request_id: str) -> Trace:
        if request_id not in self.traces:
            raise BadStatus("/debug/requests/x/trace", 404, "No times are kept")
        return self.traces[request_id]

    async def slots(self) -> tuple[Slot, ...]:
        answer = self.slot_answers[0] if len(self.slot_answers) == 1 else self.slot_answers.pop(0)
        if isinstance(answer, ClientError):
            raise answer
        return answer

    async def aclose(self) -> None:
        self.is_closed = True


def sample_of(
    *requests: tuple[str, int, int],
    num_steps: int = 1,
    num_blocks: int = 65,
    seqs: int = 8,
    tokens: int = 64,
) -> DebugSample:
    """(id, prompt tokens, max tokens) of requests that wait; then `num_steps` steps are run."""
    scheduler = make_scheduler(
        num_blocks=num_blocks, block_size=16, caching=True, seqs=seqs, tokens=tokens
    )
    history = StepHistory()
    for request_id, prompt, max_tokens in requests:
        # Equal beginnings, so that blocks are shared.
        scheduler.add_request(
            make_request(scheduler, request_id, list(range(prompt)), max_tokens, arrival=1000.0)
        )
    for _ in range(num_steps):
        planned = scheduler.schedule()
        if not planned.total_num_scheduled_tokens:
            break
        history.record(scheduler, planned)
        result = ModelRunnerOutput([], [])
        for request_id in planned.num_scheduled_tokens:
            request = scheduler.requests[request_id]
            request.first_token_time = 1000.5  # never the hour of the test
            is_complete = request.num_computed_tokens == request.num_tokens
            result.req_ids.append(request_id)
            result.sampled_token_ids.append([next_token(request)] if is_complete else [])
        scheduler.update_from_output(planned, result)
    listed, num_not_listed = read_requests(
        json.loads(json.dumps(requests_document(scheduler, 1012.5)))
    )
    return DebugSample(
        time_s=time.monotonic(),
        scheduler=read_scheduler(json.loads(json.dumps(scheduler_document(scheduler, history)))),
        requests=listed,
        num_not_listed=num_not_listed,
        blocks=read_block_map(json.loads(json.dumps(blocks_document(scheduler)))),
    )


def rank(
    name: str, step_ms: float | None = 9.0, waited_ms: float = 1.0, **other: Any
) -> RankReading:
    """A rank of a small model, with means of its steps."""
    values = {
        "name": name,
        "pid": 4100 + sum(map(int, filter(str.isdigit, name))),
        "node": None,
        "state": "running",
        "num_steps": 0 if step_ms is None else 1234,
        "step_s": None if step_ms is None else step_ms / 1000,
        "waited_s": None if step_ms is None else waited_ms / 1000,
        "weight_bytes": 136 << 20,
        "kv_cache_bytes": 1 << 30,
        "held_bytes": 700 << 20,
    }
    return RankReading(**{**values, **other})


def with_ranks(sample: DebugSample, *ranks: RankReading) -> DebugSample:
    scheduler = dataclasses.replace(sample.scheduler, ranks=ranks)
    return dataclasses.replace(sample, scheduler=scheduler)
