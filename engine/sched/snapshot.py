"""What the scheduler is doing, as plain documents: its last step, its requests, its blocks.

Only reads. Never holds a token or a text of a request. Owns the shape of the /debug answers; who
may ask is the server's business.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from engine.messages import PrefixMiss
from engine.sched.request import Request, RequestStatus
from engine.sched.scheduler import Scheduler
from engine.sched.scheduler_output import SchedulerOutput

MAX_LISTED_REQUESTS = 500
MAX_MAPPED_BLOCKS = 1 << 16
"""The map of more blocks would hold up the steps for longer than a look at it is worth."""

Document = dict[str, Any]


class Limit(str, enum.Enum):
    """What kept a step from doing more."""

    NONE = "none"
    KV_MEMORY = "kv_memory"
    MAX_NUM_SEQS = "max_num_seqs"
    TOKEN_BUDGET = "token_budget"
    PROMPT_LOGPROBS = "prompt_logprobs"
    PROMPT_TURNS = "prompt_turns"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step as it was planned; free blocks and queue lengths are those right after planning."""

    num_requests: int
    num_decode_tokens: int
    num_prefill_tokens: int  # prompt tokens, and what preempted requests compute again
    num_preempted: int
    num_running: int
    num_waiting: int
    num_free_blocks: int
    limit: Limit
    next_waiting_tokens: int | None  # length of the request that is next in line
    next_waiting_blocks: int | None  # blocks that all of it would take, cached ones included


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSnapshot:
    """One rank of several. `step_s` and `waited_s` are means over its newest steps, None before
    the first; it waited for other ranks. `held_bytes` is of the RAM, or of the GPU's memory.

    `node` is the address of its machine, None where all ranks are on this one.
    """

    name: str
    stage: int
    tensor_rank: int
    pid: int
    node: str | None
    state: str  # running, stopped (by a signal or a debugger) or gone
    num_steps: int
    step_s: float | None
    waited_s: float | None
    weight_bytes: int
    kv_cache_bytes: int
    held_bytes: int | None


class StepHistory:
    """Remembers the newest step that computed something."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.last_step: StepRecord | None = None
        self.last_step_time_s = time.monotonic()

    def record(self, scheduler: Scheduler, planned: SchedulerOutput) -> None:
        """To be called between planning and running a step that is not empty."""
        self.num_steps += 1
        self.last_step = describe_step(scheduler, planned)
        self.last_step_time_s = time.monotonic()


def describe_step(scheduler: Scheduler, planned: SchedulerOutput) -> StepRecord:
    """Read off a plan, before its results are taken back."""
    counts = planned.num_scheduled_tokens
    drafts = planned.draft_token_ids
    num_decode = sum(
        counts[key]
        for key in counts
        if _is_decode(scheduler.requests[key], counts[key], len(drafts.get(key, ())))
    )
    preempted = [
        key
        for key in planned.finished_req_ids
        if key in scheduler.requests and scheduler.requests[key].status == RequestStatus.PREEMPTED
    ]
    head = scheduler.waiting.peek() if len(scheduler.waiting) else None
    return StepRecord(
        num_requests=len(counts),
        num_decode_tokens=num_decode,
        num_prefill_tokens=planned.total_num_scheduled_tokens - num_decode,
        num_preempted=len(preempted),
        num_running=len(scheduler.running),
        num_waiting=len(scheduler.waiting),
        num_free_blocks=scheduler.kv_cache_manager.block_pool.num_free_blocks,
        limit=_limit(scheduler, planned, head, has_preempted=bool(preempted)),
        next_waiting_tokens=head.num_tokens if head else None,
        next_waiting_blocks=-(-head.num_tokens // scheduler.block_size) if head else None,
    )


def _is_decode(request: Request, count: int, num_drafted: int) -> bool:
    """The step computes the newest generated token, its draft, and nothing else of this request."""
    is_at_end = request.num_computed_tokens == request.num_tokens + num_drafted
    return count == 1 + num_drafted and is_at_end and request.num_output_tokens > 0


def _limit(
    scheduler: Scheduler, planned: SchedulerOutput, head: Request | None, *, has_preempted: bool
) -> Limit:
    """Where the scheduler's loops stopped, in the order in which it asks."""
    config = scheduler.config
    budget = config.max_num_batched_tokens - planned.total_num_scheduled_tokens
    if has_preempted:
        return Limit.KV_MEMORY
    if head is None:
        is_cut = any(item.num_computed_tokens < item.num_tokens for item in scheduler.running)
        return Limit.TOKEN_BUDGET if is_cut and budget == 0 else Limit.NONE
    if len(scheduler.running) >= config.max_num_seqs:
        return Limit.MAX_NUM_SEQS
    if budget == 0 or (not config.enable_chunked_prefill and head.num_tokens > budget):
        return Limit.TOKEN_BUDGET
    if scheduler.num_taking_turns:
        return Limit.PROMPT_TURNS
    if head.sampling_params.prompt_logprobs is not None:
        return Limit.PROMPT_LOGPROBS
    return Limit.KV_MEMORY


# ---- documents ----------------------------------------------------------------------------------


def scheduler_document(
    scheduler: Scheduler, history: StepHistory, ranks: Iterable[RankSnapshot] = ()
) -> Document:
    """Limits, queue lengths, block counts, the newest step, and the ranks where there are any."""
    config, pool = scheduler.config, scheduler.kv_cache_manager.block_pool
    num_running, num_waiting = len(scheduler.running), len(scheduler.waiting)
    return {
        "object": "scheduler",
        "num_running": num_running,
        "num_waiting": num_waiting,
        "num_waiting_for_grammar": len(scheduler.requests) - num_running - num_waiting,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_model_len": config.max_model_len,
        "policy": config.policy,
        "block_size": scheduler.block_size,
        "num_blocks": pool.num_blocks - 1,
        "num_free_blocks": pool.num_free_blocks,
        "num_steps": history.num_steps,
        "last_step_age_s": round(time.monotonic() - history.last_step_time_s, 3),
        "last_step": asdict(history.last_step) if history.last_step else None,
        "ranks": [asdict(rank) for rank in ranks],
    }


def requests_document(scheduler: Scheduler, now_s: float) -> Document:
    """Every live request, running ones first, then in the order of the queue; `now_s` is unix."""
    waiting = list(scheduler.waiting)
    places = {request.request_id: place for place, request in enumerate(waiting, start=1)}
    known = {request.request_id for request in scheduler.running} | places.keys()
    others = [request for key, request in scheduler.requests.items() if key not in known]
    listed = [*scheduler.running, *waiting, *others]
    return {
        "object": "list",
        "data": [
            _request_entry(scheduler, request, places.get(request.request_id), now_s)
            for request in listed[:MAX_LISTED_REQUESTS]
        ],
        "num_not_listed": max(0, len(listed) - MAX_LISTED_REQUESTS),
    }


def _request_entry(
    scheduler: Scheduler, request: Request, place: int | None, now_s: float
) -> Document:
    return {
        "id": request.request_id,
        "state": _STATES[request.status],
        "place": place,
        "age_s": round(max(0.0, now_s - request.arrival_time), 3),
        "first_token_s": _first_token_s(request),
        "prompt_tokens": request.num_prompt_tokens,
        "prompt_tokens_done": min(request.num_computed_tokens, request.num_prompt_tokens),
        "output_tokens": request.num_output_tokens,
        "max_tokens": request.max_tokens,
        "blocks": len(_held_blocks(scheduler, request.request_id)),
        "cached_tokens": request.num_cached_tokens,
        "prefix_miss": miss_document(request.prefix_miss),
        "preemptions": request.num_preemptions,
        "priority": request.priority,
    }


def miss_document(miss: PrefixMiss | None) -> Document | None:
    """Why the prefix cache did not have more of a prompt; None where nothing was lost."""
    if miss is None:
        return None
    return {
        "cause": miss.cause.value,
        "matched_tokens": miss.num_matched_tokens,
        "lost_tokens": miss.num_lost_tokens,
    }


def _first_token_s(request: Request) -> float | None:
    """Seconds from the arrival to the first token; None before it."""
    if request.first_token_time is None:
        return None
    return round(max(0.0, request.first_token_time - request.arrival_time), 4)


_STATES = {
    RequestStatus.WAITING: "waiting",
    RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR: "grammar",
    RequestStatus.RUNNING: "running",
    RequestStatus.PREEMPTED: "preempted",
}


def blocks_document(scheduler: Scheduler) -> Document:
    """The state of every block; `cached` ones are free, but still hold a prefix.

    Lists of blocks are runs: [3, 4] is 3 4 5 6, [9, -2] is 9 8. `free_queue` is in the order in
    which blocks are handed out. Above MAX_MAPPED_BLOCKS only the counts that cost nothing.
    """
    pool = scheduler.kv_cache_manager.block_pool
    total, num_free = pool.num_blocks - 1, pool.num_free_blocks
    document: Document = {
        "object": "blocks",
        "first_block": 1,
        "num_blocks": total,
        "block_size": scheduler.block_size,
        "num_used": total - num_free,
        "num_free_or_cached": num_free,
        "num_unused_slots": sum(_num_unused_slots(scheduler, item) for item in scheduler.running),
        "is_mapped": total <= MAX_MAPPED_BLOCKS,
    }
    if total <= MAX_MAPPED_BLOCKS:
        findable = [block.block_id for block in pool.blocks if block.block_hash is not None]
        document["findable"] = _runs(findable)
        document["free_queue"] = _runs(pool.free_queue.block_ids())
        document["owners"] = {
            request_id: _runs(held)
            for request_id in scheduler.requests
            if (held := _held_blocks(scheduler, request_id))
        }
    return document


def _num_unused_slots(scheduler: Scheduler, request: Request) -> int:
    """Token slots that a running request's blocks have room for and that hold nothing yet."""
    tables = scheduler.kv_cache_manager.get_block_ids(request.request_id)
    slots = sum(len(table) * scheduler.block_size for table in tables)
    return slots - len(tables) * request.num_computed_tokens


def _held_blocks(scheduler: Scheduler, request_id: str) -> list[int]:
    """Blocks of all groups; the null block stands where a window has moved on."""
    tables = scheduler.kv_cache_manager.get_block_ids(request_id)
    return [block_id for table in tables for block_id in table if block_id]


def _runs(block_ids: Iterable[int]) -> list[list[int]]:
    """Neighbours that count up or down by one, as [first, length]; a length below 0 counts down."""
    runs: list[list[int]] = []
    for block_id in block_ids:
        if runs:
            first, length = runs[-1]
            if length >= 1 and block_id == first + length:
                runs[-1][1] += 1
                continue
            if (length == 1 and block_id == first - 1) or (
                length < 0 and block_id == first + length
            ):
                runs[-1][1] = -2 if length == 1 else length - 1
                continue
        runs.append([block_id, 1])
    return runs
