"""Compares a plan with what a real start logged: the same KV memory must give the same capacity.

A log rounds its KV memory to 0.01 GiB, so the prediction is a range. Older versions of vLLM counted
otherwise: `app.planning.vllm_versions`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

from app.errors import ExitCode, StokerError
from app.launch.engines import LLAMA_CPP, STOKER, VLLM
from app.planning.gpu_catalogue import PlannedGpu
from app.planning.model_shapes import ModelShape
from app.planning.plan import MemoryPlan
from app.planning.plan_request import PlanRequest, planned_step_budget
from app.planning.planned_cache import cache_spec
from app.planning.vllm_versions import NEWEST_VERSION, Version, parse_version, version_rules
from engine.kv_sizing import KVCacheGroup, KVCacheSpec, capacity_of_blocks, pipeline_stages
from engine.machine.sizes import GIB
from logparse import LogReport
from logparse.report.details import least

_CPU_BLOCK = 128


@dataclass(frozen=True, slots=True)
class ComparedValue:
    """One figure of the log beside what the plan says, from `low` to `high`.

    Capacity follows from the log's own KV memory and must agree; where `is_estimate`, only a start
    could know.
    """

    name: str
    logged: float
    low: float
    high: float
    basis: str
    is_estimate: bool = False

    @property
    def agrees(self) -> bool:
        """Whether the logged figure is within the range."""
        return self.low <= self.logged <= self.high


@dataclass(frozen=True, slots=True)
class _Counting:
    """How the version that wrote the log counts."""

    spec: KVCacheSpec
    max_model_len: int
    has_tokens_by_concurrency: bool

    def tokens(self, blocks: int) -> int:
        if self.has_tokens_by_concurrency:
            return capacity_of_blocks(blocks, self.spec, self.max_model_len).num_tokens
        return blocks // len(self.spec.groups) * self.spec.block_size

    def concurrency(self, blocks: int) -> float:
        return round(blocks / self.spec.blocks_per_request(self.max_model_len), 2)


def request_of_log(report: LogReport, request: PlanRequest) -> PlanRequest:
    """The flags that the start had; what the log does not say stays as asked."""
    facts = report.facts
    gpu = request.gpu
    if gpu is None and facts.gpu_total_gib is not None:
        gpu = PlannedGpu("the log's GPU", int(facts.gpu_total_gib * GIB))
    # SGLang counts single tokens, as llama.cpp does.
    engines = {"llama.cpp": LLAMA_CPP, "sglang": LLAMA_CPP, "stoker": STOKER}
    cache_dtype = facts.kv_cache_dtype
    version = _version(report)
    share = request.gpu_memory_utilization
    if version is not None:
        share = min(share, version_rules(version).default_utilization)
    return dataclasses.replace(
        request,
        gpu=gpu,
        engine=engines.get(report.engine or "", VLLM),
        tensor_parallel_size=facts.tensor_parallel_size or request.tensor_parallel_size,
        pipeline_parallel_size=facts.pipeline_parallel_size or request.pipeline_parallel_size,
        max_model_len=facts.max_model_len or request.max_model_len,
        kv_cache_dtype=request.kv_cache_dtype if cache_dtype in (None, "auto") else cache_dtype,
        gpu_memory_utilization=facts.gpu_memory_utilization or share,
        enforce_eager=bool(facts.enforce_eager) or request.enforce_eager,
        block_size=facts.block_size or request.block_size or _default_block(report),
        max_num_batched_tokens=facts.max_num_batched_tokens or request.max_num_batched_tokens,
        vllm_version=version or request.vllm_version,
    )


def compare_capacity(
    shape: ModelShape, report: LogReport, request: PlanRequest
) -> tuple[ComparedValue, ...]:
    """Blocks, tokens and concurrency; StokerError (3) when the log does not say them."""
    facts, total = report.facts, report.kv_tokens_total
    if facts.max_model_len is None or total is None:
        raise StokerError(
            "the log does not say the size of the KV cache, so there is nothing to compare",
            hint="`stoker logs FILE` shows how far the start came",
            exit_code=ExitCode.NOT_ENOUGH_EVIDENCE,
        )
    counting = _counting(shape, report, request, facts.max_model_len)
    memory = least(facts.kv_memory_gib)
    if memory is None:  # tokens and concurrency must still belong together
        blocks = facts.kv_blocks or total // counting.spec.block_size
        found = _figures(report, counting, blocks, blocks, f"from {total:,} tokens of the log")
        return tuple(value for value in found if value.name == "max_concurrency")
    low, high = kv_memory_interval(memory)
    size = counting.spec.bytes_per_block
    basis = f"from {memory} GiB of KV memory and {size:,} bytes a block"
    return tuple(_figures(report, counting, low // size, (high - 1) // size, basis))


def compare_memory(plan: MemoryPlan, report: LogReport) -> Iterator[ComparedValue]:
    """Weights, estimates and KV memory beside what the start measured."""
    facts = report.facts
    measured = {
        "non-torch memory": facts.non_torch_gib,
        "activation peak": facts.peak_activation_gib,
        "CUDA graphs": least(facts.graph_gib),
    }
    weights = least(facts.weights_gib)
    if weights is not None:
        gib = round(plan.tightest.weights_bytes / GIB, 2)
        yield ComparedValue("weights_gib", weights, gib, gib, plan.weights.basis, is_estimate=True)
    for guess in plan.assumptions:
        gib_logged = measured[guess.name]
        if gib_logged is not None:
            low, high = (round(edge / GIB, 2) for edge in (guess.low, guess.high))
            yield ComparedValue(guess.name, gib_logged, low, high, guess.basis, is_estimate=True)
    memory = least(facts.kv_memory_gib)
    if memory is not None and plan.request.gpu is not None:
        low, high = (round(edge / GIB, 2) for edge in (plan.kv_low, plan.kv_high))
        basis = f"what is left of {plan.request.gpu.name}"
        yield ComparedValue("kv_memory_gib", memory, low, high, basis, is_estimate=True)


def kv_memory_interval(gib: float) -> tuple[int, int]:
    """Bytes that print as `gib` with two decimals: from, and up to but not including."""
    return math.ceil((gib - 0.005) * GIB), math.ceil((gib + 0.005) * GIB)


def _figures(
    report: LogReport, counting: _Counting, low: int, high: int, basis: str
) -> Iterator[ComparedValue]:
    facts = report.facts
    tokens, concurrency = least(facts.kv_tokens), least(facts.max_concurrency)
    if facts.kv_blocks is not None:
        yield ComparedValue("kv_blocks", facts.kv_blocks, low, high, basis)
    if tokens is not None:
        edges = (counting.tokens(low), counting.tokens(high))
        yield ComparedValue("kv_tokens", tokens, *edges, basis)
    if concurrency is not None:
        ends = (counting.concurrency(low), counting.concurrency(high))
        yield ComparedValue("max_concurrency", concurrency, *ends, basis)


def _counting(
    shape: ModelShape, report: LogReport, request: PlanRequest, max_model_len: int
) -> _Counting:
    asked = request_of_log(report, request)
    if report.facts.dtype in ("float16", "bfloat16", "float32"):
        shape = dataclasses.replace(shape, dtype=report.facts.dtype)
    asked = dataclasses.replace(asked, cpu_dtype=shape.dtype)
    tokens = planned_step_budget(asked, max_model_len).max_num_batched_tokens
    stages = pipeline_stages(shape.num_layers, asked.pipeline_parallel_size)
    specs = (cache_spec(shape, asked, tokens, layers) for layers in stages)
    spec = max(specs, key=lambda stage: stage.bytes_per_block)
    rules = version_rules(_version(report) or NEWEST_VERSION)
    if not rules.has_groups:
        spec = dataclasses.replace(spec, groups=(KVCacheGroup(tuple(range(spec.num_layers))),))
    if not rules.has_async_scheduling:
        spec = dataclasses.replace(spec, in_flight_tokens=tokens)
    return _Counting(spec, max_model_len, rules.has_tokens_by_concurrency)


def _default_block(report: LogReport) -> int | None:
    """vLLM's CPU backend takes 128 since its V1 engine; the one before printed blocks."""
    is_cpu = report.engine == "vllm" and report.facts.platform == "cpu"
    return _CPU_BLOCK if is_cpu and report.facts.kv_blocks is None else None


def _version(report: LogReport) -> Version | None:
    """Of vLLM; None for other engines and unknown versions, which count as the newest does."""
    if report.engine != "vllm" or not report.facts.engine_version:
        return None
    try:
        return parse_version(report.facts.engine_version)
    except StokerError:
        return None
