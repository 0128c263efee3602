"""Drives an executor with hand-made SchedulerOutputs, the way a scheduler would."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from engine.config import CacheConfig, DeviceConfig, EngineConfig, SchedulerConfig
from engine.core.executor import Executor
from engine.messages import TokenLogprobs
from engine.model_config import ModelConfig
from engine.sampling_params import SamplingParams
from engine.sched.scheduler_output import (
    CachedRequestData,
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
)

GREEDY = SamplingParams(temperature=0.0)
_PROBED = 50


def engine_config(
    folder: Path,
    *,
    dtype: str = "float32",
    block_size: int = 16,
    max_model_len: int = 1024,
    kernels: str = "auto",
    quantization: str = "none",
    cache_dtype: str = "auto",
    num_threads: int | None = None,
) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig.from_folder(folder, folder.name),
        cache=CacheConfig(block_size=block_size, cache_dtype=cache_dtype),
        scheduler=SchedulerConfig(
            max_num_batched_tokens=2048, max_num_seqs=32, max_model_len=max_model_len
        ),
        device=DeviceConfig(
            device="cpu",
            dtype=dtype,
            kernels=kernels,
            quantization=quantization,
            num_threads=num_threads,
        ),
    )


@dataclass
class _Request:
    tokens: list[int]
    num_prompt: int
    params: SamplingParams
    eos: tuple[int, ...]
    blocks: list[int] = field(default_factory=list)
    computed: int = 0


class Driver:
    """Gives every request blocks of its own; the caller says who gets how many tokens."""

    def __init__(self, executor: Executor, block_size: int) -> None:
        self._executor = executor
        self._block_size = block_size
        self._next_block = 1  # block 0 is the null block
        self._requests: dict[str, _Request] = {}
        self._unsent: set[str] = set()
        self._finished: list[str] = []

    def add(
        self,
        req_id: str,
        prompt: list[int],
        params: SamplingParams = GREEDY,
        eos: tuple[int, ...] = (),
    ) -> None:
        self._requests[req_id] = _Request(list(prompt), len(prompt), params, eos)
        self._unsent.add(req_id)

    def preempt(self, req_id: str) -> None:
        """Forget the KV; the request comes back in full."""
        request = self._requests[req_id]
        request.blocks, request.computed = [], 0
        self._finished.append(req_id)
        self._unsent.add(req_id)

    def finish(self, req_id: str) -> list[int]:
        request = self._requests.pop(req_id)
        self._finished.append(req_id)
        return request.tokens[request.num_prompt :]

    def remaining(self, req_id: str) -> int:
        request = self._requests[req_id]
        return len(request.tokens) - request.computed

    def step(self, schedule: dict[str, int]) -> ModelRunnerOutput:
        new: list[NewRequestData] = []
        cached = CachedRequestData()
        for req_id, count in schedule.items():
            request = self._requests[req_id]
            blocks = self._grow(request, request.computed + count)
            if req_id in self._unsent:
                new.append(self._in_full(req_id, request))
                self._unsent.discard(req_id)
            else:
                cached.req_ids.append(req_id)
                cached.new_block_ids.append([blocks] if blocks else [])
                cached.num_computed_tokens.append(request.computed)
        output = self._executor.execute_model(
            SchedulerOutput(new, cached, dict(schedule), sum(schedule.values()), self._finished)
        ).result()
        self._finished = []
        for req_id, tokens in zip(output.req_ids, output.sampled_token_ids, strict=True):
            self._requests[req_id].computed += schedule[req_id]
            self._requests[req_id].tokens += tokens
        return output

    def generate(self, req_ids: list[str], num_tokens: int, chunk: int = 10**9) -> list[list[int]]:
        """Run all until each has `num_tokens` new tokens; prompts go in chunks of `chunk`."""
        while True:
            schedule = {
                req_id: min(self.remaining(req_id), chunk)
                for req_id in req_ids
                if self._num_outputs(req_id) < num_tokens
            }
            if not schedule:
                return [self.finish(req_id) for req_id in req_ids]
            self.step(schedule)

    def probe(self, tokens: list[int]) -> TokenLogprobs:
        """What may follow these tokens: log probabilities of all tokens or of many."""
        self.add("probe", tokens, SamplingParams(temperature=0.0, logprobs=_PROBED))
        output = self.step({"probe": len(tokens)})
        self.finish("probe")
        return output.logprobs["probe"][0]

    def _num_outputs(self, req_id: str) -> int:
        return len(self._requests[req_id].tokens) - self._requests[req_id].num_prompt

    def _grow(self, request: _Request, num_tokens: int) -> list[int]:
        count = -(-num_tokens // self._block_size) - len(request.blocks)
        # Odd strides: neighbours in a sequence are not neighbours in the cache.
        blocks = [self._next_block + i for i in range(count)][::-1]
        self._next_block += count
        request.blocks += blocks
        return blocks

    def _in_full(self, req_id: str, request: _Request) -> NewRequestData:
        return NewRequestData(
            req_id=req_id,
            token_ids=list(request.tokens),
            num_prompt_tokens=request.num_prompt,
            block_ids=[list(request.blocks)],
            num_computed_tokens=request.computed,
            sampling_params=request.params,
            eos_token_ids=request.eos,
        )
