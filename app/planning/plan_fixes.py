"""What would make a plan fit: one change each, planned with all other flags kept before it is said.

The order is that of what people give up last: first the memory they left unused, then length,
then more GPUs or coarser numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from app.errors import StokerError
from app.launch.engines import LLAMA_CPP, STOKER, VLLM
from app.planning.plan import (
    MemoryPlan,
    estimate_slack,
    kv_room,
    least_tensor_parallel,
    with_changes,
)
from app.planning.plan_request import LEAST_LENGTH
from app.planning.weight_sizes import Weights
from engine.config import CPU_QUANTIZATIONS

_LARGER_SHARES = (0.95, 0.98)
_FEWER_REQUESTS = (256, 64, 16)

Change = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class PlanFix:
    """`flags` are what to add or replace; `plan` is the plan with them, which fits."""

    flags: str
    plan: MemoryPlan


def find_fixes(plan: MemoryPlan, weights: Weights) -> tuple[PlanFix, ...]:
    """Changes that are enough alone; empty when the plan fits or no single change is enough.

    `weights` are those before any quantisation on load.
    """
    if plan.shortfall is None:
        return ()
    found: list[PlanFix] = []
    for flags, changes in _changes(plan, weights):
        try:
            changed = with_changes(plan, weights, **changes)
        except StokerError:  # this model or engine cannot have it
            continue
        if changed.shortfall is None:
            found.append(PlanFix(flags, changed))
    return tuple(_first_of_each_kind(found))


def fewer_requests_help(plan: MemoryPlan) -> bool:
    """Whether a lower --max-num-seqs takes less: of vLLM's sampling, or of states for each slot."""
    engine = plan.request.engine
    if engine == STOKER:
        return plan.tightest.states_bytes > 0
    return engine == VLLM and plan.request.gpu is not None


def quantised_forms(plan: MemoryPlan) -> Iterator[Change]:
    """Coarser weights and a coarser cache, where they are not there already."""
    changes: dict[str, dict[str, Any]] = {}
    if plan.shape.quantization is None and plan.request.quantization is None:
        for kind in _load_formats(plan):
            changes[f"--quantization {kind}"] = {"quantization": kind}
    gpu = plan.request.gpu
    has_fp8_cache = gpu is None or gpu.has_fp8_cache
    if plan.request.engine == STOKER and plan.shape.support.keeps_own_cache:
        has_fp8_cache = False
    if plan.tightest.spec.dtype_bytes > 1 and plan.request.engine != LLAMA_CPP and has_fp8_cache:
        changes["--kv-cache-dtype fp8"] = {"kv_cache_dtype": "fp8"}
    yield from changes.items()
    if len(changes) == 2:
        yield " ".join(changes), {k: v for change in changes.values() for k, v in change.items()}


def _load_formats(plan: MemoryPlan) -> tuple[str, ...]:
    request = plan.request
    if request.engine == VLLM and request.gpu is not None:
        return ("fp8",) if request.gpu.has_fp8_weights else ()
    if request.engine != STOKER or plan.shape.support.implementation != "stoker":
        return ()
    return CPU_QUANTIZATIONS if request.gpu is None else ("fp8",)


def _changes(plan: MemoryPlan, weights: Weights) -> Iterator[Change]:
    request = plan.request
    yield from _cache_sizes(plan)
    if request.kv_memory_bytes is None and request.gpu is not None and request.engine != LLAMA_CPP:
        for share in _LARGER_SHARES:
            if share > request.gpu_memory_utilization:
                yield f"--gpu-memory-utilization {share}", {"gpu_memory_utilization": share}
    longest = plan.longest_model_len()
    if LEAST_LENGTH <= longest < plan.max_model_len:
        yield f"--max-model-len {longest}", {"max_model_len": longest}
    if fewer_requests_help(plan):
        for number in _FEWER_REQUESTS:
            if number < plan.scheduler.max_num_seqs:
                yield f"--max-num-seqs {number}", {"max_num_seqs": number}
    least = least_tensor_parallel(plan, weights)
    if least is not None and least > request.tensor_parallel_size:
        yield f"--tensor-parallel-size {least}", {"tensor_parallel_size": least}
    yield from quantised_forms(plan)


def _cache_sizes(plan: MemoryPlan) -> Iterator[Change]:
    """Of a cache whose size was given: as large as there is room, as one request needs, or open."""
    if plan.request.kv_memory_bytes is None:
        return
    spec = plan.tightest.spec
    needed = spec.bytes_per_block * (spec.blocks_per_request(plan.max_model_len) + 1)
    room = kv_room(plan)
    safe = room - estimate_slack(plan)
    for size in (safe, room, needed):
        if 0 < size <= room:
            yield f"--kv-cache-memory-bytes {size}", {"kv_memory_bytes": size}
    yield "no --kv-cache-memory-bytes", {"kv_memory_bytes": None}


def _first_of_each_kind(fixes: list[PlanFix]) -> Iterator[PlanFix]:
    """The mildest value of each flag."""
    seen: set[tuple[str, ...]] = set()
    for fix in fixes:
        kind = tuple(word for word in fix.flags.split() if word.startswith("--"))
        if kind not in seen:
            seen.add(kind)
            yield fix
