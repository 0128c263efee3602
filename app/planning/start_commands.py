"""The command lines that start what was planned: vLLM, our own engine, llama-server."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from app.ops.model_catalogue import find_builtin
from app.planning.plan_models import PlannedModel
from app.planning.plan_request import PlanRequest
from engine.model_families import is_supported

_DEFAULT_UTILIZATION = 0.92


@dataclass(frozen=True, slots=True)
class StartCommand:
    """`command` is None where this engine cannot start it; `note` says why, or what to know."""

    engine: str
    command: str | None
    note: str | None = None


def start_commands(
    model: PlannedModel, request: PlanRequest, max_model_len: int
) -> tuple[StartCommand, ...]:
    """One for each engine."""
    return (
        _vllm(model, request, max_model_len),
        _stoker(model, request, max_model_len),
        _llama_cpp(model, max_model_len),
    )


def _vllm(model: PlannedModel, request: PlanRequest, max_model_len: int) -> StartCommand:
    if model.is_gguf:
        return StartCommand("vllm", None, "vLLM 0.30.0 has no GGUF loader")
    if request.gpu is None:
        return StartCommand("vllm", None, "the vLLM wheel is the CUDA build")
    words = ["vllm", "serve", model.command_name]
    words += _shared_flags(model, request, max_model_len)
    for flag, value in (
        ("--tensor-parallel-size", request.tensor_parallel_size),
        ("--pipeline-parallel-size", request.pipeline_parallel_size),
        ("--data-parallel-size", request.data_parallel_size),
    ):
        words += [flag, str(value)] if value > 1 else []
    words += ["--quantization", request.quantization] if request.quantization else []
    return StartCommand("vllm", shlex.join(words))


def _stoker(model: PlannedModel, request: PlanRequest, max_model_len: int) -> StartCommand:
    sizes = (
        request.tensor_parallel_size,
        request.pipeline_parallel_size,
        request.data_parallel_size,
    )
    reason = None
    if max(sizes) > 1:
        reason = "it runs on one device"
    elif model.shape.quantization not in (None, "gguf") or request.quantization:
        reason = "it runs checkpoints that are not quantised"
    if reason is not None:
        return StartCommand("stoker", None, reason)
    name = model.shape.name if find_builtin(model.shape.name) else model.command_name
    words = ["stoker", "serve", name, *_shared_flags(model, request, max_model_len)]
    note = None
    if model.is_gguf:
        note = "converts the file to bf16 once, which takes more memory"
    elif not is_supported(model.shape.architecture):
        note = "in transformers' own code over Stoker's cache, where that is possible"
    return StartCommand("stoker", shlex.join(words), note)


def _llama_cpp(model: PlannedModel, max_model_len: int) -> StartCommand:
    name = model.command_name if model.is_gguf else f"{model.shape.name.rsplit('/', 1)[-1]}.gguf"
    words = ["llama-server", "--model", name, "--ctx-size", str(max_model_len)]
    words += ["--n-gpu-layers", "999"]
    note = None if model.is_gguf else "needs the model as a GGUF file"
    return StartCommand("llama.cpp", shlex.join(words), note)


def _shared_flags(model: PlannedModel, request: PlanRequest, max_model_len: int) -> list[str]:
    """Flags that vLLM and our engine spell alike, where they are not at their default."""
    words = []
    for flag, value, default in (
        ("--max-model-len", max_model_len, model.shape.max_model_len),
        ("--gpu-memory-utilization", request.gpu_memory_utilization, _DEFAULT_UTILIZATION),
        ("--kv-cache-dtype", request.kv_cache_dtype, "auto"),
        ("--kv-cache-memory-bytes", request.kv_memory_bytes, None),
        ("--max-num-seqs", request.max_num_seqs, None),
        ("--max-num-batched-tokens", request.max_num_batched_tokens, None),
        ("--block-size", request.block_size, None),
    ):
        words += [] if value == default else [flag, str(value)]
    return [*words, "--enforce-eager"] if request.enforce_eager else words
