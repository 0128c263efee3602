"""Predicts what a start will log: memory, KV blocks, tokens, concurrency, CUDA graphs.

vLLM 0.30's arithmetic (through `engine.kv_sizing`) and defaults; our own engine's where they
differ. Knows shapes and numbers only: reads no file, asks no GPU.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from app.launch.engines import LLAMA_CPP, STOKER, VLLM
from app.planning.expert_padding import padded_experts
from app.planning.lora_weights import with_lora_slots
from app.planning.memory_estimates import Assumption, ProfiledStart, assumptions, calibrated
from app.planning.model_shapes import ModelShape
from app.planning.plan_request import (
    PlanRequest,
    asked_model_len,
    parallel_sizes,
    planned_step_budget,
    require_possible,
    require_whole_texts,
)
from app.planning.planned_cache import LLAMA_CPP_STEP, cache_spec, run_dtype, states_apart
from app.planning.vllm_versions import version_rules
from app.planning.weight_counts import count_weights
from app.planning.weight_sizes import Weights, device_bytes
from engine.cuda_graph_sizes import CaptureRules, GraphPlan, graph_mode, graph_plan
from engine.errors import MemoryBudgetError
from engine.kv_sizing import (
    KVCacheSpec,
    KVCapacity,
    capacity_of_blocks,
    cpu_cap,
    cpu_share,
    format_gib,
    longest_model_len,
    pipeline_stages,
    requested_memory,
    require_one_request_fits,
)
from engine.machine.ram_shares import PROCESS_BYTES
from engine.machine.sizes import GIB
from engine.step_budget import StepBudget


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One rank of a pipeline stage; its peers are equal. Bytes.

    `states_bytes` are those of recurrent layers that lie beside the blocks, for all slots.
    `available_bytes` is negative by what is missing where the rest is more than the memory.
    """

    layers: range
    weights_bytes: int
    available_bytes: int
    spec: KVCacheSpec
    states_bytes: int = 0

    @property
    def fixed_bytes(self) -> int:
        """What is taken whatever the length of requests."""
        return self.weights_bytes + self.states_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The prediction. `shortfall` is why it does not fit; `capacity` counts the least stage."""

    request: PlanRequest
    shape: ModelShape
    weights: Weights
    scheduler: StepBudget
    graphs: GraphPlan
    requested_bytes: int
    assumptions: tuple[Assumption, ...]
    stages: tuple[StagePlan, ...]
    max_model_len: int
    capacity: KVCapacity
    kv_low: int
    kv_high: int
    shortfall: str | None

    @property
    def tightest(self) -> StagePlan:
        """The stage that limits the number of blocks."""
        return min(self.stages, key=_blocks)

    @property
    def non_kv_bytes(self) -> int:
        """Weights, non-torch memory and peak of the tightest stage, without graphs."""
        return self.tightest.weights_bytes + sum(a.num_bytes for a in self.assumptions[:2])

    @property
    def world_size(self) -> int:
        """How many GPUs it uses: the product of the three parallel sizes."""
        r = self.request
        return r.tensor_parallel_size * r.pipeline_parallel_size * r.data_parallel_size

    @property
    def fits_at_worst(self) -> bool:
        """Whether it fits as well if every estimate is at its high end."""
        try:
            require_one_request_fits(self.kv_low, self.tightest.spec, self.max_model_len)
        except MemoryBudgetError:
            return False
        return self.shortfall is None

    def longest_model_len(self) -> int:
        """Longest request that fits, at most what the model was made for; 0 when none does."""
        limit = self.shape.max_model_len
        return min(longest_model_len(s.available_bytes, s.spec, limit) for s in self.stages)

    def requests_of(self, num_tokens: int) -> int:
        """Requests of this length that the cache holds at once; the null block serves nobody."""
        usable = self.capacity.num_blocks - 1
        return max(0, usable // self.tightest.spec.blocks_per_request(num_tokens))


def make_plan(shape: ModelShape, weights: Weights, request: PlanRequest) -> MemoryPlan:
    """Predict; StokerError with exit code 2 for flags that cannot work."""
    require_possible(shape, request)
    plan = _planned(shape, weights, _counted_together(request))
    return dataclasses.replace(plan, request=request)


def _counted_together(request: PlanRequest) -> PlanRequest:
    """Ranks of our engine on a CPU share its RAM: all of a machine together take what one would."""
    if request.engine != STOKER or request.gpu is not None:
        return request
    stages = math.gcd(request.pipeline_parallel_size, request.nnodes)
    return dataclasses.replace(
        request,
        pipeline_parallel_size=stages,
        tensor_parallel_size=request.nnodes // stages,
        nnodes=1,
    )


def _planned(shape: ModelShape, weights: Weights, request: PlanRequest) -> MemoryPlan:
    weights = _plain_numbers(weights, shape, request)
    if request.quantization in ("fp8", "fp8_per_block"):
        weights = weights.as_fp8()
    weights = _as_loaded(weights, shape, request)
    if request.lora is not None and request.engine in (STOKER, VLLM):
        weights = with_lora_slots(weights, shape, request.lora, run_dtype(shape, request))
    max_len = asked_model_len(shape, request)
    scheduler = planned_step_budget(request, max_len)
    require_whole_texts(shape, request, scheduler.max_num_batched_tokens, max_len)
    graphs = _graphs(shape, request, scheduler)
    guesses = _assumptions(shape, request, scheduler, graphs)
    requested = _requested(request)
    plan = MemoryPlan(
        request=request,
        shape=shape,
        weights=weights,
        scheduler=scheduler,
        graphs=graphs,
        requested_bytes=requested,
        assumptions=guesses,
        stages=_stages(shape, weights, request, scheduler, max_len, requested, guesses),
        max_model_len=max_len,
        capacity=KVCapacity(0, 0, 0.0),
        kv_low=0,
        kv_high=0,
        shortfall=None,
    )
    if request.max_model_len == -1:
        plan = dataclasses.replace(plan, max_model_len=max(1, plan.longest_model_len()))
    return _sized(plan)


def _plain_numbers(weights: Weights, shape: ModelShape, request: PlanRequest) -> Weights:
    """In the format that the model runs in; our engine dequantises a checkpoint while it loads."""
    dtype = run_dtype(shape, request)
    if shape.quantization is None:
        return weights.loaded_as(dtype)
    is_counted = not (shape.is_plain or shape.has_unknown_tower)
    if request.engine != STOKER or shape.support.implementation is None or not is_counted:
        return weights
    plain = count_weights(dataclasses.replace(shape, quantization=None)).loaded_as(dtype)
    return dataclasses.replace(plain, basis=f"{weights.basis}, dequantised while loading")


def _as_loaded(weights: Weights, shape: ModelShape, request: PlanRequest) -> Weights:
    """As the engine keeps them, which is not as the file has them."""
    is_int8_on_gpu = request.engine == STOKER and request.quantization == "int8"
    if _is_native(shape, request) or is_int8_on_gpu:  # whose scales take a little less
        return weights.as_native(shape, request.quantization)
    if request.engine != VLLM or request.gpu is None:
        return weights
    rules = version_rules(request.vllm_version)
    return padded_experts(weights, shape, request.gpu, request.tensor_parallel_size, rules)


def _is_native(shape: ModelShape, request: PlanRequest) -> bool:
    """Whether our native CPU kernels pack the weights, given a compiler."""
    is_ours = request.engine == STOKER and request.gpu is None
    has_own_code = shape.support.implementation == "stoker"
    return is_ours and has_own_code and run_dtype(shape, request) == "bfloat16"


def _sized(plan: MemoryPlan) -> MemoryPlan:
    stage, max_len = plan.tightest, plan.max_model_len
    blocks = max(0, _blocks(stage))
    kv, guesses = stage.available_bytes, plan.assumptions
    is_fixed = plan.request.kv_memory_bytes is not None
    return dataclasses.replace(
        plan,
        capacity=capacity_of_blocks(blocks, stage.spec, max_len),
        kv_low=kv if is_fixed else kv - estimate_slack(plan),
        kv_high=kv
        if is_fixed
        else kv + _device_spread(plan.request) + sum(a.num_bytes - a.low for a in guesses),
        shortfall=_cache_beyond_memory(plan) or _shortfall(plan.stages, max_len),
    )


def estimate_slack(plan: MemoryPlan) -> int:
    """Bytes by which the memory for the KV cache may come out less than planned."""
    above = sum(guess.high - guess.num_bytes for guess in plan.assumptions)
    return above + _device_spread(plan.request)


def kv_room(plan: MemoryPlan) -> int:
    """Most bytes that a KV cache can take beside the weights and all else, whatever the share."""
    request = plan.request
    spent = plan.tightest.fixed_bytes + sum(guess.num_bytes for guess in plan.assumptions)
    if request.gpu is None:
        room = request.free_ram_bytes // request.data_parallel_size
        return max(0, room - spent - process_bytes(request))
    return max(0, request.gpu.memory_bytes - spent)


def process_bytes(request: PlanRequest) -> int:
    """What the processes of a start on a CPU take beside weights and KV cache."""
    if request.calibration is not None:
        return int(request.calibration.likely)
    return PROCESS_BYTES if request.engine == STOKER else 0


def _cache_beyond_memory(plan: MemoryPlan) -> str | None:
    asked = plan.request.kv_memory_bytes
    if asked is None or asked <= (room := kv_room(plan)):
        return None
    where = "RAM" if plan.request.gpu is None else "memory of the GPU"
    return (
        f"--kv-cache-memory-bytes asks for {format_gib(asked)} GiB, and beside the weights and "
        f"what else is needed the {where} has room for {format_gib(room)} GiB."
    )


def _device_spread(request: PlanRequest) -> int:
    """By how much the share may be off, since drivers report a card's memory differently."""
    if request.gpu is None:
        return 0
    return int(_requested(request) * request.gpu.memory_tolerance)


def _shortfall(stages: Sequence[StagePlan], max_len: int) -> str | None:
    for stage in stages:
        if stage.available_bytes <= 0:
            gib = round(-stage.available_bytes / GIB, 2)
            return f"The weights and what else is needed exceed the memory by {gib} GiB."
        try:
            require_one_request_fits(stage.available_bytes, stage.spec, max_len)
        except MemoryBudgetError:
            needed = stage.spec.bytes_for_one_request(max_len)
            longest = longest_model_len(stage.available_bytes, stage.spec, max_len)
            return (
                f"A request of {max_len:,} tokens needs {format_gib(needed)} GiB of KV cache, and "
                f"{format_gib(stage.available_bytes)} GiB are left for it: enough for "
                f"{longest:,} tokens."
            )
    return None


def _blocks(stage: StagePlan) -> int:
    return stage.available_bytes // stage.spec.bytes_per_block


def _graphs(shape: ModelShape, request: PlanRequest, scheduler: StepBudget) -> GraphPlan:
    """Those of vLLM and of our own engine; llama.cpp's take no memory worth a line."""
    eager = request.enforce_eager or request.gpu is None or not _has_graphs(shape, request)
    is_vllm = request.engine == VLLM
    rules = CaptureRules(
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        num_speculative_tokens=request.num_speculative_tokens if is_vllm else 0,
        compute_capability=request.gpu.compute_capability if request.gpu else None,
    )
    return graph_plan(rules, graph_mode(2, enforce_eager=eager))


def _has_graphs(shape: ModelShape, request: PlanRequest) -> bool:
    """Whether the engine records steps on a GPU; ours those of its own code on one rank alone."""
    if request.engine != STOKER:
        return request.engine == VLLM
    is_one_rank = request.tensor_parallel_size * request.pipeline_parallel_size == 1
    is_own_code = shape.support.implementation == "stoker"
    return is_own_code and is_one_rank and request.lora is None


def _assumptions(
    shape: ModelShape, request: PlanRequest, scheduler: StepBudget, graphs: GraphPlan
) -> tuple[Assumption, ...]:
    if request.gpu is None:
        return ()
    is_llama_cpp = request.engine == LLAMA_CPP
    start = ProfiledStart(
        shape=shape,
        gpu=request.gpu,
        tokens=LLAMA_CPP_STEP if is_llama_cpp else scheduler.max_num_batched_tokens,
        seqs=1 if is_llama_cpp else scheduler.max_num_seqs,
        tensor_parallel_size=request.tensor_parallel_size,
        graphs=graphs,
        rules=version_rules(request.vllm_version),
        is_llama_cpp=is_llama_cpp,
    )
    guesses = assumptions(request.given, start)
    return calibrated(guesses, request.calibration)


def _requested(request: PlanRequest) -> int:
    if request.gpu is None:  # the share is of what the weights leave
        return request.free_ram_bytes
    if request.engine == LLAMA_CPP:  # takes what its flags need, from the whole device
        return request.gpu.memory_bytes
    return requested_memory(request.gpu.memory_bytes, request.gpu_memory_utilization)


def _stages(
    shape: ModelShape,
    weights: Weights,
    request: PlanRequest,
    scheduler: StepBudget,
    max_len: int,
    requested: int,
    guesses: tuple[Assumption, ...],
) -> tuple[StagePlan, ...]:
    spent = sum(a.num_bytes for a in guesses)
    stages = []
    for layers in pipeline_stages(shape.num_layers, request.pipeline_parallel_size):
        size = device_bytes(weights, shape, request.tensor_parallel_size, layers)
        spec = cache_spec(shape, request, scheduler.max_num_batched_tokens, layers)
        states = states_apart(shape, request, scheduler.max_num_seqs, layers)
        available = requested - size - spent - states
        if request.gpu is None:
            # Looked at once the weights are there, and the processes themselves.
            taken = size + states + process_bytes(request)
            left = request.free_ram_bytes - request.data_parallel_size * taken
            share = cpu_share(left, _ram_share(request), spec, max_len)
            available = share if left > 0 else left
        if request.kv_memory_bytes is not None:
            available = request.kv_memory_bytes
        stages.append(StagePlan(layers, size, available, spec, states))
    return tuple(stages)


def cpu_process_bytes(plan: MemoryPlan, kv_bytes: int) -> int | None:
    """What a start on a CPU took beside weights and KV cache; None where its cap hides that, and
    of several ranks, which share the memory out while the log tells one cache.
    """
    stage, request = plan.tightest, plan.request
    if request.tensor_parallel_size * request.pipeline_parallel_size > 1:
        return None
    cap = cpu_cap(stage.spec, plan.max_model_len)
    if request.kv_memory_bytes is not None or kv_bytes >= 0.99 * cap:
        return None
    found = int(kv_bytes / _ram_share(request))
    held = (request.free_ram_bytes - found) // request.data_parallel_size
    return max(0, held - stage.fixed_bytes)


def _ram_share(request: PlanRequest) -> float:
    """What one of the engines on a CPU takes of the free RAM: all replicas share it."""
    return request.gpu_memory_utilization / request.data_parallel_size


def with_changes(plan: MemoryPlan, weights: Weights, **changes: object) -> MemoryPlan:
    """The same plan with other flags, for what-if answers. `weights` are those before fp8."""
    request = dataclasses.replace(plan.request, **changes)  # type: ignore[arg-type]
    return make_plan(plan.shape, weights, request)


def least_tensor_parallel(plan: MemoryPlan, weights: Weights, at_least: int = 1) -> int | None:
    """The smallest size that divides the heads and fits; None when 16 GPUs are too few."""
    if plan.request.engine != VLLM or plan.request.kv_memory_bytes is not None:
        return None
    for size in parallel_sizes(plan.shape):
        if size < at_least:
            continue
        if with_changes(plan, weights, tensor_parallel_size=size, nnodes=1).shortfall is None:
            return size
    return None
