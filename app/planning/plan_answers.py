"""What people ask of a plan: does it fit, what would, how long, how many, what does fp8 change."""

from __future__ import annotations

from dataclasses import dataclass

from app.launch.engines import VLLM
from app.planning.image_share import ImageShare, image_share
from app.planning.plan import MemoryPlan, kv_room, least_tensor_parallel, with_changes
from app.planning.plan_fixes import find_fixes, quantised_forms
from app.planning.plan_models import PlannedModel
from app.planning.plan_request import parallel_sizes
from app.planning.start_commands import StartCommand, start_commands

_NO_FLAG_HELPS = "a larger GPU, or a smaller or quantised model"


@dataclass(frozen=True, slots=True)
class Variant:
    """The same plan with one flag more."""

    flags: str
    fits: bool
    num_tokens: int
    max_concurrency: float


@dataclass(frozen=True, slots=True)
class Answers:
    """`advice` is empty when it fits; `least_tensor_parallel` None when no size up to 16 does.

    Each advice is enough alone, with all other flags as they are. `requests` include the tokens of
    their images.
    """

    longest_model_len: int
    requests: tuple[tuple[int, int], ...]  # (tokens, how many fit at once)
    least_tensor_parallel: int | None
    parallel_sizes: tuple[int, ...]
    variants: tuple[Variant, ...]
    advice: tuple[str, ...]
    commands: tuple[StartCommand, ...]
    images: ImageShare | None = None


def answer(
    plan: MemoryPlan, model: PlannedModel, lengths: tuple[int, ...], num_images: int = 0
) -> Answers:
    """Everything that follows from a plan; `lengths` are tokens of a request beside its images.

    The commands are those of the plan, or of the first change to it that fits.
    """
    images = image_share(plan, num_images)
    if images is not None:
        lengths = tuple(length + images.num_tokens for length in lengths)
    fixes = find_fixes(plan, model.weights)
    fitting = fixes[0].plan if fixes else plan
    advice = tuple(fix.flags for fix in fixes) or (_NO_FLAG_HELPS,)
    return Answers(
        longest_model_len=plan.longest_model_len() if _has_room(plan) else 0,
        requests=tuple((length, plan.requests_of(length)) for length in lengths),
        least_tensor_parallel=least_tensor_parallel(plan, model.weights),
        parallel_sizes=parallel_sizes(plan.shape) if plan.request.engine == VLLM else (1,),
        variants=_variants(plan, model),
        advice=advice if plan.shortfall else (),
        commands=start_commands(model, fitting),
        images=images,
    )


def _has_room(plan: MemoryPlan) -> bool:
    given = plan.request.kv_memory_bytes
    return given is None or given <= kv_room(plan)


def _variants(plan: MemoryPlan, model: PlannedModel) -> tuple[Variant, ...]:
    """What vLLM does on a GPU with fp8 weights, an fp8 cache and both."""
    if plan.request.engine != VLLM or plan.request.gpu is None:
        return ()
    plans = (
        (flags, with_changes(plan, model.weights, **change))
        for flags, change in quantised_forms(plan)
    )
    return tuple(
        Variant(flags, p.shortfall is None, p.capacity.num_tokens, p.capacity.max_concurrency)
        for flags, p in plans
    )
