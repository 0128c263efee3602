"""Which engine should serve a model here: an ordered table of rules, the first that holds decides.

Knows needs and rules; the facts of a machine come from doctor's probes or a file of them.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.errors import StokerError, UsageError
from app.launch.engines import LLAMA_CPP, STOKER, VLLM
from app.planning.builtin_shapes import BUILTIN_SHAPES

if TYPE_CHECKING:
    from app.doctor.facts import DoctorFacts
    from app.planning.gpu_catalogue import PlannedGpu
    from app.planning.plan_models import PlannedModel
    from engine.model_support import Support

MANY_USERS = 8
"""Where the lesson draws the line; an example's threshold, nothing that was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Machine and workload. `is_cpu_or_apple_only`: no GPU that vLLM's wheel can use."""

    name: str
    has_gpu: bool
    is_linux: bool
    concurrent_users: int
    is_gguf_only: bool
    is_cpu_or_apple_only: bool
    needs_several_gpus: bool


@dataclass(frozen=True, slots=True)
class ChoiceRule:
    """`holds` gets the need and the number of users from which there are many."""

    id: str
    holds: Callable[[Need, int], bool]
    engine: str
    reason: str


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The answer, the rule that decided and those that were passed over before it."""

    need: Need
    engine: str
    reason: str
    rule: str
    passed_over: tuple[str, ...]


RULES = (
    ChoiceRule(
        "cpu-or-apple",
        lambda need, many: need.is_cpu_or_apple_only,
        "llama.cpp",
        "CPU or Apple GPU: llama.cpp builds for both; the vLLM PyPI wheel is the CUDA build",
    ),
    ChoiceRule(
        "not-linux",
        lambda need, many: not need.is_linux,
        "llama.cpp",
        "vLLM wheels are manylinux only",
    ),
    ChoiceRule(
        "gguf-only",
        lambda need, many: need.is_gguf_only,
        "llama.cpp",
        "GGUF is llama.cpp's native format; vLLM 0.30.0 has no GGUF loader",
    ),
    ChoiceRule(
        "several-gpus",
        lambda need, many: need.needs_several_gpus,
        "vLLM",
        "tensor and pipeline parallelism across GPUs",
    ),
    ChoiceRule(
        "many-users",
        lambda need, many: need.has_gpu and need.concurrent_users >= many,
        "vLLM",
        "many concurrent requests: paged KV blocks, token-budget scheduler, CUDA graphs",
    ),
    ChoiceRule(
        "few-users",
        lambda need, many: True,
        "llama.cpp",
        "few concurrent requests: slots and quantized GGUF weights fit a single user",
    ),
)


@dataclass(frozen=True, slots=True)
class ModelTraits:
    """What more of the model decides than the lesson's rules ask.

    `is_served_here`: Stoker's own engine serves it. `is_latent`: its cache is one compressed vector
    (MLA), which tensor parallelism repeats on every rank. `is_gguf`: it lies as a GGUF file.
    """

    is_served_here: bool
    is_latent: bool
    is_gguf: bool


@dataclass(frozen=True, slots=True)
class ModelRule:
    """A rule that looks at the model too, asked before the lesson's."""

    id: str
    holds: Callable[[Need, ModelTraits, int], bool]
    engine: str
    reason: str


MODEL_RULES = (
    ModelRule(
        "own-cpu",
        lambda need, model, many: (
            need.is_cpu_or_apple_only
            and need.is_linux
            and model.is_served_here
            and not model.is_gguf
        ),
        "Stoker",
        "CPU, and the model's own files: Stoker's kernels run them without a conversion to GGUF, "
        "and batch all requests over one paged cache",
    ),
    ModelRule(
        "latent-many-users",
        lambda need, model, many: (
            need.has_gpu
            and need.is_linux
            and model.is_latent
            and need.needs_several_gpus
            and need.concurrent_users >= many
        ),
        "SGLang",
        "MLA over several GPUs for many users: SGLang's data-parallel attention keeps each "
        "request's cache on one GPU, where tensor parallelism repeats it on all",
    ),
)


def choose_engine(
    need: Need, many_users: int = MANY_USERS, traits: ModelTraits | None = None
) -> EngineChoice:
    """The first rule that holds; the last one always does. `traits` asks the model's rules too."""
    asked: list[tuple[ChoiceRule | ModelRule, bool]] = []
    if traits is not None:
        asked += [(rule, rule.holds(need, traits, many_users)) for rule in MODEL_RULES]
    asked += [(rule, rule.holds(need, many_users)) for rule in RULES]
    number, found = next((n, rule) for n, (rule, holds) in enumerate(asked) if holds)
    before = tuple(rule.id for rule, _ in asked[:number])
    return EngineChoice(need, found.engine, found.reason, found.id, before)


def model_traits(model: PlannedModel, *, fits_here: bool = True) -> ModelTraits:
    """Of a model that was found; `fits_here`: our own engine has room for it."""
    from app.planning.start_commands import support_of

    is_served = support_of(model).implementation is not None and fits_here
    return ModelTraits(is_served, model.shape.latent is not None, model.is_gguf)


def fits_own_engine(model: PlannedModel, facts: DoctorFacts, free_ram_bytes: int | None) -> bool:
    """Whether `own_command` would start on the machine, as a plan says it.

    `free_ram_bytes` None where a machine's memory is not known: then its CPU has room.
    """
    from app.planning.plan import make_plan
    from app.planning.plan_request import LEAST_LENGTH, PlanRequest
    from app.planning.start_commands import support_of
    from engine.args import cpu_dtype

    support, gpu = support_of(model), _planned_gpu(facts)
    if support.implementation is None:
        return False
    if gpu is None and free_ram_bytes is None:
        return True
    request = PlanRequest(
        gpu=gpu,
        engine=STOKER,
        free_ram_bytes=free_ram_bytes or 0,
        cpu_dtype=cpu_dtype(support.implementation),
        max_model_len=_own_length(support),
    )
    try:
        plan = make_plan(model.shape, model.weights, request)
    except StokerError:
        return False
    least = min(LEAST_LENGTH, model.shape.max_model_len)
    return plan.shortfall is None and plan.max_model_len >= least


def _own_length(support: Support) -> int | None:
    """-1 for the longest that fits, which an encoder's blocks do not limit."""
    if support.max_model_len is not None:
        return support.max_model_len
    return None if support.is_encoder else -1


def serve_words(
    choice: EngineChoice,
    model: str,
    tensor_parallel_size: int | None = None,
    found: PlannedModel | None = None,
) -> tuple[str, ...]:
    """The words after `stoker` that start what was chosen; StokerError where none do."""
    if choice.engine == "SGLang":
        raise UsageError(
            "stoker serve does not start SGLang",
            hint=f"type: {start_command(choice, model, tensor_parallel_size)}",
        )
    if choice.engine == "llama.cpp" and not model.endswith(".gguf"):
        raise UsageError(
            f"llama.cpp needs {model} as a GGUF file",
            hint="give the path of one: stoker choose FILE.gguf --start",
        )
    if choice.engine == "Stoker" and (own := own_command(found)) is not None:
        return tuple(shlex.split(own)[1:])
    engine = VLLM if choice.engine == "vLLM" else LLAMA_CPP
    name = _command_name(model, found) if engine == VLLM else model
    words = ["serve", name, "--engine", engine]
    if engine == VLLM:
        words += ["--max-model-len", "auto"]
        if choice.need.needs_several_gpus and tensor_parallel_size is not None:
            words += ["--tensor-parallel-size", str(tensor_parallel_size)]
    return tuple(words)


def read_needs(path: Path) -> tuple[Need, ...]:
    """Needs from a JSON file: one object or a list, with the fields of Need as keys."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{path} is no valid JSON: {error}") from error
    return tuple(_need(item, path) for item in (value if isinstance(value, list) else [value]))


def _need(item: Any, path: Path) -> Need:
    kinds: Mapping[str, type] = {"name": str, "concurrent_users": int}
    fields = [entry.name for entry in dataclasses.fields(Need)]
    if not isinstance(item, dict) or set(item) != set(fields):
        raise UsageError(f"{path}: a need has exactly the keys {', '.join(fields)}")
    for name in fields:
        if type(item[name]) is not kinds.get(name, bool):
            raise UsageError(
                f"{path}: {name} is {item[name]!r}, not a {kinds.get(name, bool).__name__}"
            )
    return Need(**item)


def host_need(
    facts: DoctorFacts,
    model: str | None,
    users: int,
    needs_several_gpus: bool | None,
    found: PlannedModel | None = None,
) -> Need:
    """A machine as doctor's probes saw it. What is not given follows from what was `found` under
    MODEL, and from the GPUs.

    Several GPUs are needed where the model does not fit one and fits more.
    """
    reading, seen = facts.gpu, facts.accelerators
    gpus = reading.gpus if reading else ()
    has_gpu = bool(gpus) or (seen is not None and seen.has_kfd)
    if needs_several_gpus is None:
        sizes = gpus_needed(facts, found) if len(gpus) > 1 else None
        needs_several_gpus = len(gpus) > 1 if model is None else (sizes or 1) > 1
    return Need(
        name=f"{facts.name or 'this machine'}, {model or 'any model'}",
        has_gpu=has_gpu,
        is_linux=facts.machine is None or facts.machine.system == "linux",
        concurrent_users=users,
        is_gguf_only=model is not None and model.endswith(".gguf"),
        is_cpu_or_apple_only=not has_gpu,
        needs_several_gpus=needs_several_gpus,
    )


def gpus_needed(facts: DoctorFacts, found: PlannedModel | None, *, at_least: int = 1) -> int | None:
    """The least tensor-parallel size with which the model and a short request fit those GPUs; None
    where that is not known, or no size is enough.
    """
    from app.planning.plan import least_tensor_parallel, make_plan
    from app.planning.plan_request import PlanRequest

    gpu = _planned_gpu(facts)
    if gpu is None or found is None or found.is_gguf:
        return None
    plan = make_plan(found.shape, found.weights, PlanRequest(gpu=gpu, max_model_len=-1))
    return least_tensor_parallel(plan, found.weights, at_least)


def _planned_gpu(facts: DoctorFacts) -> PlannedGpu | None:
    """None where there is none, or parts of one."""
    from app.planning.gpu_catalogue import gpu_of_reading

    try:
        return gpu_of_reading(facts.gpu) if facts.gpu else None
    except UsageError:
        return None


def too_few_gpus(
    choice: EngineChoice, facts: DoctorFacts, found: PlannedModel | None, size: int | None
) -> str | None:
    """What is in the way of a start on this machine's GPUs; None where nothing is known to be."""
    if choice.engine not in ("vLLM", "SGLang") or found is None or _planned_gpu(facts) is None:
        return None
    assert facts.gpu is not None
    here = len(facts.gpu.gpus)
    if size is not None and size <= here:
        return None
    needed = "more" if size is None else str(size)
    return f"it needs {needed} of these GPUs, and {here} {'is' if here == 1 else 'are'} here"


def start_command(
    choice: EngineChoice,
    model: str | None,
    tensor_parallel_size: int | None = None,
    found: PlannedModel | None = None,
) -> str:
    """What to type for the engine that was chosen; our own wants the model that was `found`."""
    if choice.engine == "Stoker" and (own := own_command(found)) is not None:
        return own
    name = model or "MODEL"
    path = shlex.quote(_command_name(name, found))
    if choice.engine == "vLLM":
        command = f"vllm serve {path}"
        command += " --max-model-len auto"  # the longest that fits, as the size was found
        if choice.need.needs_several_gpus:
            command += f" --tensor-parallel-size {tensor_parallel_size or 'N'}"
        return command
    if choice.engine == "SGLang":
        ranks = tensor_parallel_size or "N"
        command = f"python -m sglang.launch_server --model-path {path} --tp-size {ranks}"
        return f"{command} --dp-size {ranks} --enable-dp-attention"
    file = shlex.quote(name) if name.endswith(".gguf") else "MODEL.gguf"
    return f"llama-server --model {file}" + (" --n-gpu-layers 999" if choice.need.has_gpu else "")


def _command_name(model: str, found: PlannedModel | None) -> str:
    """What an engine's command line takes for the name that was typed."""
    if found is not None:
        return found.command_name
    builtin = BUILTIN_SHAPES.get(model.lower())
    return builtin.hub_id if builtin else model


def own_command(model: PlannedModel | None) -> str | None:
    """`stoker serve` for a model that it takes; None where it does not, or nothing is known."""
    from app.planning.start_commands import support_of
    from engine.model_store.catalogue import find_builtin

    if model is None:
        return None
    support = support_of(model)
    if support.implementation is None:
        return None
    name = model.shape.name if find_builtin(model.shape.name) else model.command_name
    words = ["stoker", "serve", name]
    if (length := _own_length(support)) is not None:
        words += ["--max-model-len", "auto" if length == -1 else str(length)]
    return shlex.join(words)
