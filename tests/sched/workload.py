"""Drives the real Scheduler without a model: the tokens come from a rule, so runs can be redone."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from engine.config import CacheConfig, SchedulerConfig
from engine.kv_sizing import FULL_ATTENTION, KVCacheGroup
from engine.lora_adapters import LoraRequest
from engine.messages import EngineCoreOutput, EngineCoreRequest, ImageInput
from engine.sampling_params import SamplingParams
from engine.sched.request import Request
from engine.sched.scheduler import Scheduler
from engine.sched.scheduler_output import ModelRunnerOutput, SchedulerOutput
from engine.speculative_config import SpeculativeConfig


def make_scheduler(
    *,
    num_blocks: int = 1000,
    block_size: int = 4,
    caching: bool = False,
    tokens: int = 2048,
    seqs: int = 256,
    max_model_len: int = 4096,
    policy: str = "fcfs",
    chunked: bool = True,
    threshold: int = 0,
    reserve: bool = True,
    groups: Sequence[KVCacheGroup] = FULL_ATTENTION,
    speculative: SpeculativeConfig | None = None,
    max_loras: int | None = None,
    step_images: int | None = None,
    joint: int | None = None,
) -> Scheduler:
    return Scheduler(
        SchedulerConfig(
            max_num_batched_tokens=tokens,
            max_num_seqs=seqs,
            max_model_len=max_model_len,
            policy=policy,
            enable_chunked_prefill=chunked,
            long_prefill_token_threshold=threshold,
            reserve_full_isl=reserve,
            speculative=speculative,
            max_step_images=step_images,
            max_joint_prefill_tokens=joint,
        ),
        CacheConfig(block_size=block_size, enable_prefix_caching=caching),
        num_blocks,
        groups,
        max_loras=max_loras,
    )


def make_request(
    scheduler: Scheduler,
    request_id: str,
    prompt: int | list[int],
    max_tokens: int,
    *,
    arrival: float = 0.0,
    priority: int = 0,
    salt: str | None = None,
    params: SamplingParams | None = None,
    eos: tuple[int, ...] = (),
    lora: LoraRequest | None = None,
    images: tuple[ImageInput, ...] = (),
) -> Request:
    token_ids = (
        prompt
        if isinstance(prompt, list)
        else [(sum(map(ord, request_id)) * 7 + i * i) % 1000 for i in range(prompt)]
    )
    message = EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=token_ids,
        sampling_params=params or SamplingParams(max_tokens=max_tokens),
        arrival_time=arrival,
        eos_token_ids=eos,
        cache_salt=salt,
        priority=priority,
        lora=lora,
        images=images,
    )
    manager = scheduler.kv_cache_manager
    return Request(message, scheduler.block_size, hash_blocks=manager.enable_caching)


def check_integrity(scheduler: Scheduler) -> None:
    """free + used + null = total, and reference counts equal the tables."""
    manager = scheduler.kv_cache_manager
    pool = manager.block_pool
    uses = Counter(
        block_id
        for request_id in scheduler.requests
        for table in manager.get_block_ids(request_id)
        for block_id in table
        if block_id
    )
    free = pool.free_queue.block_ids()
    assert len(set(free)) == len(free)
    assert 0 not in free
    assert set(free).isdisjoint(uses)
    assert len(free) + len(uses) + 1 == pool.num_blocks
    for block in pool.blocks[1:]:
        assert block.ref_cnt == uses.get(block.block_id, 0)
        if block.ref_cnt > 1:
            assert manager.enable_caching
            assert block.block_hash is not None
    for request in scheduler.running:
        for table in manager.get_block_ids(request.request_id):
            assert len(table) == -(-request.num_computed_tokens // scheduler.block_size)


def picture(offset: int, num_tokens: int, name: str) -> ImageInput:
    """An image without pixels, told from others by its name."""
    digest = hashlib.sha256(name.encode()).digest()
    return ImageInput(offset, num_tokens, digest, b"", (3, 0, 0))


def next_token(request: Request) -> int:
    """A token that depends on the whole sequence, as a greedy model's would."""
    return (sum(request.token_ids) * 31 + len(request.token_ids)) % 997


class Run:
    """Steps a scheduler like a model runner would, and keeps its own view of the runner's state."""

    def __init__(
        self,
        scheduler: Scheduler,
        token: Callable[[Request], int] = next_token,
        groups: Sequence[KVCacheGroup] = FULL_ATTENTION,
    ) -> None:
        self.scheduler = scheduler
        self.groups = groups
        self.token = token
        self.held: dict[str, int] = {}  # request id -> tokens whose KV the runner holds
        self.tables: dict[str, list[list[int]]] = {}
        self.outputs: dict[str, list[int]] = {}
        self.reasons: dict[str, str] = {}
        self.memory: dict[int, int] = {}  # slot -> what was computed into it

    def step(self) -> tuple[SchedulerOutput, list[EngineCoreOutput]]:
        planned = self.scheduler.schedule()
        self._apply(planned)
        result = ModelRunnerOutput([], [])
        for request_id in planned.num_scheduled_tokens:
            request = self.scheduler.requests[request_id]
            result.req_ids.append(request_id)
            draft = planned.draft_token_ids.get(request_id, [])
            is_complete = request.num_computed_tokens == request.num_tokens + len(draft)
            sampled = self._verified(request, draft) if is_complete else []
            result.sampled_token_ids.append(sampled)
            if draft:
                self.held[request_id] -= len(draft) + 1 - len(sampled)
        outputs = self.scheduler.update_from_output(planned, result)
        for output in outputs:
            self.outputs.setdefault(output.request_id, []).extend(output.new_token_ids)
            if output.finish_reason is not None:
                self.reasons[output.request_id] = str(output.finish_reason)
        return planned, outputs

    def _verified(self, request: Request, draft: Sequence[int]) -> list[int]:
        """The tokens that the rule gives: the draft as far as it is right, and one more."""
        sampled: list[int] = []
        num_known = len(request.token_ids)
        while True:
            sampled.append(self.token(request))
            place = len(sampled) - 1
            if place == len(draft) or sampled[-1] != draft[place]:
                break
            request.token_ids.append(sampled[-1])
        del request.token_ids[num_known:]
        return sampled

    def finish(self, max_steps: int = 10_000) -> int:
        steps = 0
        while self.scheduler.has_unfinished_requests():
            assert steps < max_steps, "the scheduler makes no progress"
            self.step()
            steps += 1
        return steps

    def _apply(self, planned: SchedulerOutput) -> None:
        """What a model runner would do with the message; checks that the differences add up."""
        for request_id in planned.finished_req_ids:
            self.held.pop(request_id, None)
            self.tables.pop(request_id, None)
        for new in planned.new_requests:
            assert new.req_id not in self.held
            self.held[new.req_id] = new.num_computed_tokens
            self.tables[new.req_id] = [list(table) for table in new.block_ids]
        cached = planned.cached_requests
        for request_id, blocks, computed in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            assert self.held[request_id] == computed
            for table, new_blocks in zip(self.tables[request_id], blocks, strict=bool(blocks)):
                table.extend(new_blocks)
        for request_id, count in planned.num_scheduled_tokens.items():
            self.held[request_id] += count
            block_size = self.scheduler.block_size
            for table in self.tables[request_id]:
                assert len(table) * block_size >= self.held[request_id]
        for request_id, count in planned.num_scheduled_tokens.items():
            self._compute(request_id, count, planned.draft_token_ids.get(request_id, []))

    def _compute(self, request_id: str, count: int, draft: Sequence[int]) -> None:
        """Write the tokens of this step; what their queries see must be there, in every group."""
        end = self.held[request_id]
        tokens = [*self.scheduler.requests[request_id].token_ids, *draft]
        prefixes = list(accumulate(tokens[:end], _mixed))
        block_size = self.scheduler.block_size
        for group, table in zip(self.groups, self.tables[request_id], strict=True):
            assert 0 not in table[(end - count) // block_size :]

            def slot(position: int, table: list[int] = table) -> int:
                return table[position // block_size] * block_size + position % block_size

            for position in range(end - count, end):
                self.memory[slot(position)] = hash((group.layers, prefixes[position]))
            window = group.sliding_window or end
            for position in range(max(0, end - count - window + 1), end):
                assert self.memory[slot(position)] == hash((group.layers, prefixes[position]))


def _mixed(prefix: int, token: int) -> int:
    return hash((prefix, token))


@dataclass
class ScriptedGrammar:
    """Ends after `length` tokens; refuses the token after `refuse_after`."""

    length: int = 10**6
    refuse_after: int = 10**6
    is_ready: bool = True
    error: str | None = None
    is_terminated: bool = False
    num_accepted: int = 0

    def accept(self, token_id: int) -> bool:
        if self.num_accepted == self.refuse_after:
            return False
        self.num_accepted += 1
        self.is_terminated = self.num_accepted == self.length
        return True

    def forced(self) -> list[int]:
        return []

    def num_possible(self, token_ids: Sequence[int]) -> int:
        return min(len(token_ids), self.refuse_after - self.num_accepted)
