"""What people ask of a plan: does it fit, what would, how long, how many, what does fp8 change."""

from __future__ import annotations

from dataclasses import dataclass

from app.planning.plan import Plan, least_tensor_parallel, with_changes
from app.planning.plan_models import PlannedModel
from app.planning.plan_request import VLLM, parallel_sizes
from app.planning.start_commands import StartCommand, start_commands


@dataclass(frozen=True, slots=True)
class Variant:
    """The same plan with one flag more."""

    flags: str
    fits: bool
    num_tokens: int
    max_concurrency: float


@dataclass(frozen=True, slots=True)
class Answers:
    """`advice` is empty when it fits; `least_tensor_parallel` None when no size up to 16 does."""

    longest_model_len: int
    requests: tuple[tuple[int, int], ...]  # (tokens, how many fit at once)
    least_tensor_parallel: int | None
    parallel_sizes: tuple[int, ...]
    variants: tuple[Variant, ...]
    advice: tuple[str, ...]
    commands: tuple[StartCommand, ...]


def answer(plan: Plan, model: PlannedModel, lengths: tuple[int, ...]) -> Answers:
    """Everything that follows from a plan; `lengths` are tokens of a request.

    The commands are those of a plan that fits, where there is one.
    """
    least = least_tensor_parallel(plan, model.weights)
    variants = _variants(plan, model)
    longest = plan.longest_model_len()
    fitting = _fitting(plan, model, longest, least)
    return Answers(
        longest_model_len=longest,
        requests=tuple((length, plan.requests_of(length)) for length in lengths),
        least_tensor_parallel=least,
        parallel_sizes=parallel_sizes(plan.shape) if plan.request.engine == VLLM else (1,),
        variants=variants,
        advice=_advice(plan, longest, least, variants) if plan.shortfall else (),
        commands=start_commands(model, fitting.request, fitting.max_model_len),
    )


def _variants(plan: Plan, model: PlannedModel) -> tuple[Variant, ...]:
    """fp8 weights and fp8 cache, where they are not there already."""
    changes: dict[str, dict[str, object]] = {}
    if plan.request.engine == VLLM and plan.request.gpu is not None:
        if plan.shape.quantization is None and plan.request.quantization is None:
            changes["--quantization fp8"] = {"quantization": "fp8"}
        if plan.tightest.spec.dtype_bytes > 1:
            changes["--kv-cache-dtype fp8"] = {"kv_cache_dtype": "fp8"}
        if len(changes) == 2:
            both = {key: value for change in changes.values() for key, value in change.items()}
            changes[" ".join(changes)] = both
    plans = ((flags, with_changes(plan, model.weights, **c)) for flags, c in changes.items())
    return tuple(
        Variant(flags, p.shortfall is None, p.capacity.num_tokens, p.capacity.max_concurrency)
        for flags, p in plans
    )


def _fitting(plan: Plan, model: PlannedModel, longest: int, least: int | None) -> Plan:
    """The plan, or the nearest to it that fits."""
    if plan.shortfall is None:
        return plan
    if longest > 0:
        return with_changes(plan, model.weights, max_model_len=longest)
    if least is not None:
        return with_changes(plan, model.weights, tensor_parallel_size=least)
    return plan


def _advice(
    plan: Plan, longest: int, least: int | None, variants: tuple[Variant, ...]
) -> tuple[str, ...]:
    advice = [f"--max-model-len {longest}"] if longest > 0 else []
    if least is not None and least > plan.request.tensor_parallel_size:
        advice.append(f"--tp {least}")
    advice += [variant.flags for variant in variants if variant.fits]
    return tuple(advice) or ("a larger GPU, or a smaller or quantised model",)
