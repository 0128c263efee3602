"""Makes the ledger's entry for a start: the plan for its flags beside the figures of its log."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

from app.errors import StokerError
from app.launch.engines import STOKER, VLLM
from app.launch.launch_specs import LaunchSpec, ServeRequest
from app.planning.calibration import calibrate, device_key, shape_key
from app.planning.log_comparison import request_of_log
from app.planning.memory_before import MemoryBefore
from app.planning.memory_ledger import Figures, LedgerEntry, MemoryLedger
from app.planning.plan import MemoryPlan, cpu_process_bytes, make_plan, with_changes
from app.planning.plan_models import PlannedModel, find_planned_model
from app.planning.plan_request import PlanRequest
from engine.errors import EngineError
from engine.machine.sizes import GIB
from logparse import LogReport
from logparse.report.details import least

# What reading and counting a model with an unheard-of configuration can end in.
_ODD_FILES = (OSError, ValueError, LookupError, TypeError, ArithmeticError)


def plan_request(request: ServeRequest, before: MemoryBefore) -> PlanRequest:
    """The flags of `stoker serve` as those of a plan."""
    args = request.args
    return PlanRequest(
        gpu=before.gpu,
        engine=request.engine,
        free_ram_bytes=before.free_ram_bytes,
        max_model_len=args.max_model_len,
        kv_cache_dtype=args.kv_cache_dtype,
        quantization=None if args.quantization == "none" else args.quantization,
        gpu_memory_utilization=args.gpu_memory_utilization,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        block_size=args.block_size,
        enforce_eager=args.enforce_eager,
        kv_memory_bytes=args.kv_cache_memory_bytes,
    )


def record_start(
    ledger: MemoryLedger,
    request: ServeRequest,
    spec: LaunchSpec,
    before: MemoryBefore,
    report: LogReport,
    *,
    server: str,
    log_path: Path,
    now: Callable[[], float] = time.time,
) -> str | None:
    """Add the entry; why there is none, where the model cannot be planned or the file not written.

    A start that works must not fail for its bookkeeping.
    """
    if request.args.num_gpu_blocks_override is not None:
        return "--num-gpu-blocks-override says how large the cache is, not the memory"
    try:
        model = _model_on_disk(spec)
        if model is None:
            return f"{spec.model} is not on this disk as a model that can be planned"
        entries, _ = ledger.read()
        asked = request_of_log(report, plan_request(request, before))
        plan = make_plan(model.shape, model.weights, asked)
        calibration = calibrate(entries, model.shape, asked)
        said = make_plan(
            model.shape, model.weights, dataclasses.replace(asked, calibration=calibration)
        )
        ledger.add(
            LedgerEntry(
                at=round(now(), 3),
                server=server,
                engine=asked.engine,
                engine_version=report.facts.engine_version,
                model=spec.model,
                shape=shape_key(model.shape),
                device=device_key(asked),
                tensor_parallel_size=asked.tensor_parallel_size,
                max_model_len=report.facts.max_model_len or said.max_model_len,
                predicted=_predicted(said, model, report),
                actual=_actual(plan, report),
                estimated_other_bytes=_estimated_other(plan),
                process_bytes=_process_bytes(plan, report),
                calibrated_by=calibration.num_starts if calibration else 0,
                log_path=str(log_path),
                model_path=model.command_name,
            )
        )
    except (StokerError, EngineError, *_ODD_FILES) as error:
        return str(error) or type(error).__name__
    return None


def _model_on_disk(spec: LaunchSpec) -> PlannedModel | None:
    """The model among the server's words; of a hub id what the cache holds by now. No network."""
    for word in spec.argv[1:]:
        if Path(word).is_dir() or (word.endswith(".gguf") and Path(word).is_file()):
            return find_planned_model(word)
    from engine.model_store.files import find_hub_model

    folder = find_hub_model(spec.model)
    return None if folder is None else find_planned_model(str(folder))


def _has_known_kv(plan: MemoryPlan) -> bool:
    """Whether the plan knows this engine's rule for the size of the KV cache on this device."""
    engine = plan.request.engine
    return engine == STOKER or (engine == VLLM and plan.request.gpu is not None)


def _estimated_other(plan: MemoryPlan) -> int | None:
    if not plan.assumptions or not _has_known_kv(plan):
        return None
    return sum(guess.num_bytes for guess in plan.assumptions)


def _predicted(plan: MemoryPlan, model: PlannedModel, report: LogReport) -> Figures:
    """Where the engine's rule for the cache's size is not known, what follows from its size."""
    weights = plan.tightest.weights_bytes
    kv: int | None = plan.tightest.available_bytes
    if not _has_known_kv(plan):
        logged = _bytes(least(report.facts.kv_memory_gib))
        if logged is None:
            return Figures(weights_bytes=weights)
        plan, kv = with_changes(plan, model.weights, kv_memory_bytes=logged), None
    return Figures(
        weights_bytes=weights,
        kv_bytes=kv,
        other_bytes=_estimated_other(plan),
        kv_tokens=plan.capacity.num_tokens,
        max_concurrency=round(plan.capacity.max_concurrency, 2),
    )


def _actual(plan: MemoryPlan, report: LogReport) -> Figures:
    facts = report.facts
    weights, kv = _bytes(least(facts.weights_gib)), _bytes(least(facts.kv_memory_gib))
    other = None
    is_share = plan.request.kv_memory_bytes is None and _estimated_other(plan) is not None
    if is_share and kv is not None:
        other = plan.requested_bytes - (weights or plan.tightest.weights_bytes) - kv
    return Figures(
        weights_bytes=weights,
        kv_bytes=kv,
        other_bytes=other,
        kv_tokens=report.kv_tokens_total,
        max_concurrency=least(facts.max_concurrency),
    )


def _process_bytes(plan: MemoryPlan, report: LogReport) -> int | None:
    kv = _bytes(least(report.facts.kv_memory_gib))
    if plan.request.engine != STOKER or plan.request.gpu is not None or kv is None:
        return None
    return cpu_process_bytes(plan, kv)


def _bytes(gib: float | None) -> int | None:
    return None if gib is None else round(gib * GIB)
