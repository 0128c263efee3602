"""The command lines that start what was planned: vLLM, our own engine, llama-server.

A command is printed only where the same plan for that engine fits, and with every flag that the
plan was made with; else the reason why not.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from app.errors import StokerError
from app.launch.engines import LLAMA_CPP, STOKER, VLLM
from app.planning.gpu_catalogue import CUDA, METAL
from app.planning.plan import MemoryPlan, with_changes
from app.planning.plan_models import PlannedModel
from app.planning.plan_request import LEAST_LENGTH, PlanRequest, own_refusal
from app.planning.planned_cache import run_dtype
from app.planning.vllm_versions import version_rules
from engine.config import DEFAULT_UTILIZATION
from engine.model_store.catalogue import find_builtin
from engine.model_support import Support, find_gguf_support
from engine.speculative_config import MOST_DRAFT_TOKENS
from logparse.problems.flags import knows_flag

_HEAD_NODE = "NODE_0"
_Q4_K_M_BYTES = 4.85 / 8  # of one value, as such files come out on average
_OWN_CACHE_FORMATS = ("auto", "fp8", "fp8_e4m3")


@dataclass(frozen=True, slots=True)
class StartCommand:
    """`command` is None where this engine cannot start it; `note` says why, or what to know."""

    engine: str
    command: str | None
    note: str | None = None


def start_commands(model: PlannedModel, plan: MemoryPlan) -> tuple[StartCommand, ...]:
    """How each engine would be started with this plan, or why it cannot be; of several machines
    the command of each.
    """
    found = (_vllm(model, plan), _stoker(model, plan), _llama_cpp(model, plan))
    return tuple(one for start in found for one in _per_node(start, plan.request.nnodes))


def _per_node(start: StartCommand, nnodes: int) -> Iterator[StartCommand]:
    if nnodes == 1 or start.command is None or start.engine == LLAMA_CPP:
        yield start
    else:
        yield from (_on_node(start, start.command, node, nnodes) for node in range(nnodes))


def _on_node(start: StartCommand, command: str, node: int, nnodes: int) -> StartCommand:
    """Of one of several machines; the first one's address is for the user to fill in."""
    words = [command, f"--nnodes {nnodes} --master-addr {_HEAD_NODE}"]
    words += ["--node-key-file node.key"] if start.engine == STOKER else []
    words += [f"--node-rank {node}"]
    words += ["--headless"] if start.engine == VLLM and node else []
    note = f"on node {node}; {_HEAD_NODE} is the address of node 0"
    note += ", node.key the same secret on all" if start.engine == STOKER else ""
    note += f"; {start.note}" if start.note else ""
    return dataclasses.replace(start, command=" ".join(words), note=note)


def _vllm(model: PlannedModel, plan: MemoryPlan) -> StartCommand:
    request = plan.request
    if model.is_gguf:
        return StartCommand(VLLM, None, "vLLM 0.30.0 has no GGUF loader")
    if request.gpu is None:
        return StartCommand(VLLM, None, "the vLLM wheel is the CUDA build")
    if request.gpu.platform == METAL:
        return StartCommand(VLLM, None, "vLLM does not run on Apple's GPUs")
    fitting = _fitting(plan, model, engine=VLLM)
    if isinstance(fitting, str):
        return StartCommand(VLLM, None, fitting)
    request = fitting.request
    share = version_rules(request.vllm_version).default_utilization
    words = ["vllm", "serve", model.command_name, *_shared_flags(fitting, share)]
    words += [*_parallel_flags(request)]
    words += ["--quantization", request.quantization] if request.quantization else []
    words += _lora_flags(request)
    missing = [word for word in words if not knows_flag(word, request.vllm_version)]
    if missing:
        return StartCommand(VLLM, None, f"this release of vLLM does not have {missing[0]}")
    note = "and your --speculative-config" if request.num_speculative_tokens else None
    return StartCommand(VLLM, shlex.join(words), note)


def _stoker(model: PlannedModel, plan: MemoryPlan) -> StartCommand:
    request = plan.request
    support, shape = support_of(model), model.shape
    reason = _own_obstacle(model, support, request)
    limit = support.max_model_len
    if limit is not None and limit < plan.max_model_len:
        plan = dataclasses.replace(plan, max_model_len=limit)
    fitting = reason or _fitting(plan, model, engine=STOKER)
    if isinstance(fitting, str):
        return StartCommand(STOKER, None, fitting)
    name = shape.name if find_builtin(shape.name) else model.command_name
    words = ["stoker", "serve", name, *_shared_flags(fitting, DEFAULT_UTILIZATION)]
    words += [*_parallel_flags(request)]
    words += ["--quantization", request.quantization] if request.quantization else []
    words += [*_lora_flags(request), *_speculative_flags(request)]
    words += (text_alone := _text_alone_flags(fitting, support))
    note = "for text alone: a step has no room for an image" if text_alone else None
    if model.is_gguf:
        note = "converts the file to bf16 once, which takes more memory"
    elif support.implementation == "transformers":
        note = "in transformers' own code over Stoker's cache"
    return StartCommand(STOKER, shlex.join(words), note)


def _lora_flags(request: PlanRequest) -> list[str]:
    if (lora := request.lora) is None:
        return []
    words = ["--enable-lora", "--max-loras", str(lora.max_loras)]
    return [*words, "--max-lora-rank", str(lora.max_lora_rank)]


def _text_alone_flags(plan: MemoryPlan, support: Support) -> list[str]:
    """For a step that is smaller than an image, which our own engine computes in one."""
    vision, asked = plan.shape.vision, plan.request.max_num_batched_tokens
    if vision is None or support.implementation != "stoker" or asked is None:
        return []
    if asked >= vision.tokens_per_image:
        return []
    return ["--limit-mm-per-prompt", '{"image": 0}']


def _speculative_flags(request: PlanRequest) -> list[str]:
    """Drafts without a second model, which is the method that our own engine has."""
    if not request.num_speculative_tokens:
        return []
    number = min(request.num_speculative_tokens, MOST_DRAFT_TOKENS)
    config = {"method": "ngram", "num_speculative_tokens": number}
    return ["--speculative-config", json.dumps(config)]


def serve_command(model: PlannedModel, plan: MemoryPlan, port: int) -> StartCommand:
    """`stoker serve` with the plan's engine and flags; it returns once the server is ready."""
    engine = plan.request.engine
    found = {VLLM: _vllm, STOKER: _stoker, LLAMA_CPP: _llama_cpp}[engine](model, plan)
    if found.command is None:
        return found
    words = shlex.split(found.command)
    name, flags = words[2], words[3:]
    if engine == LLAMA_CPP:
        flags = ["--max-model-len", str(plan.max_model_len)]
        flags += ["--", "--n-gpu-layers", "999"] if plan.request.gpu is not None else []
    own = ["--engine", engine] if engine != STOKER else []
    start = ["stoker", "serve", "--detach", *own, name, "--port", str(port), *flags]
    return StartCommand(engine, shlex.join(start), found.note)


def support_of(model: PlannedModel) -> Support:
    """How our own engine serves the model, a GGUF file included."""
    if not model.is_gguf:
        return model.shape.support
    return find_gguf_support(model.shape.architecture, has_experts=model.shape.experts is not None)


def _own_obstacle(model: PlannedModel, support: Support, request: PlanRequest) -> str | None:
    """Why our own engine cannot take this model or these flags."""
    if support.implementation is None:
        return f"it does not serve this model: {support.obstacle}"
    if request.gpu is not None and request.gpu.platform != CUDA:
        return "of GPUs it runs on those with CUDA"
    if (refused := own_refusal(support, request)) is not None:
        return refused[1]
    is_own = request.kv_cache_dtype == run_dtype(model.shape, request)
    if request.kv_cache_dtype not in _OWN_CACHE_FORMATS and not is_own:
        return f"its KV cache is never {request.kv_cache_dtype}"
    return None


def _llama_cpp(model: PlannedModel, plan: MemoryPlan) -> StartCommand:
    as_file = model if model.is_gguf else _as_gguf(model)
    fitting = _fitting(plan, as_file, engine=LLAMA_CPP)
    if isinstance(fitting, str):
        return StartCommand(LLAMA_CPP, None, fitting)
    note = None if model.is_gguf else "needs the model as a GGUF file, planned as Q4_K_M"
    words = ["llama-server", "--model", as_file.command_name]
    words += ["--ctx-size", str(fitting.max_model_len)]
    words += ["--n-gpu-layers", "999"] if plan.request.gpu is not None else []
    return StartCommand(LLAMA_CPP, shlex.join(words), note)


def _as_gguf(model: PlannedModel) -> PlannedModel:
    """As the quantisation that most GGUF files have; what is packed already stays."""
    weights = model.weights
    if not weights.is_packed:
        parts = tuple(
            dataclasses.replace(part, dtype="q4_k_m", num_bytes=part.num_values * _Q4_K_M_BYTES)
            for part in weights.parts
        )
        weights = dataclasses.replace(weights, parts=parts, is_packed=True)
    name = f"{model.shape.name.rstrip('/').rsplit('/', 1)[-1]}.gguf"
    return PlannedModel(model.shape, weights, name, is_gguf=True)


def _fitting(plan: MemoryPlan, model: PlannedModel, *, engine: str) -> MemoryPlan | str:
    """The plan for `engine`, with the longest length that fits it; or why there is none."""
    changes: dict[str, Any] = {"engine": engine}
    if engine != plan.request.engine:
        changes["calibration"] = None
    if engine != VLLM:
        changes["vllm_version"] = None
    if engine == LLAMA_CPP:
        changes |= {"tensor_parallel_size": 1, "pipeline_parallel_size": 1}
        changes |= {
            "nnodes": 1,
            "data_parallel_size": 1,
            "api_server_count": None,
            "lora": None,
            "quantization": None,
        }
        changes |= {"block_size": None, "kv_cache_dtype": "auto", "kv_memory_bytes": None}
        changes |= {"gpu_memory_utilization": DEFAULT_UTILIZATION}
    try:
        found = with_changes(plan, model.weights, **changes)
        longest = found.longest_model_len()
        if found.shortfall is not None and LEAST_LENGTH <= longest < found.max_model_len:
            found = with_changes(found, model.weights, max_model_len=longest)
    except StokerError as error:
        return str(error)
    return found if found.shortfall is None else f"it would not fit. {found.shortfall}"


def _parallel_flags(request: PlanRequest) -> Iterator[str]:
    for flag, value in (
        ("--tensor-parallel-size", request.tensor_parallel_size),
        ("--pipeline-parallel-size", request.pipeline_parallel_size),
        ("--data-parallel-size", request.data_parallel_size),
    ):
        if value > 1:
            yield from (flag, str(value))
    if request.api_server_count not in (None, request.data_parallel_size):
        yield from ("--api-server-count", str(request.api_server_count))


def _shared_flags(plan: MemoryPlan, default_share: float) -> list[str]:
    """Flags that vLLM and our engine spell alike, where they are not at their default."""
    request = plan.request
    words = []
    dtype = request.kv_cache_dtype
    if request.engine == STOKER and dtype not in _OWN_CACHE_FORMATS:
        dtype = "auto"
    for flag, value, default in (
        ("--max-model-len", plan.max_model_len, plan.shape.max_model_len),
        ("--gpu-memory-utilization", request.gpu_memory_utilization, default_share),
        ("--kv-cache-dtype", dtype, "auto"),
        ("--kv-cache-memory-bytes", request.kv_memory_bytes, None),
        ("--max-num-seqs", request.max_num_seqs, None),
        ("--max-num-batched-tokens", request.max_num_batched_tokens, None),
        ("--block-size", request.block_size, None),
    ):
        words += [] if value == default else [flag, str(value)]
    return [*words, "--enforce-eager"] if request.enforce_eager else words
