"""What the options of `stoker plan` ask for: the device, the sizes and the PlanRequest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from app.planning.gpu_catalogue import PlannedGpu
    from app.planning.plan_models import PlannedModel
    from app.planning.plan_request import PlanRequest


def planned_request(
    options: Mapping[str, Any],
    model: PlannedModel | None,
    device: PlannedGpu | None,
    free_ram_bytes: int,
) -> PlanRequest:
    """What the options of one server ask for."""
    from app.planning.lora_weights import LoraSlots
    from app.planning.memory_estimates import GivenGib
    from app.planning.plan_request import PlanRequest
    from app.planning.vllm_versions import parse_version, version_rules

    text, share = options["vllm_version"], options["gpu_memory_utilization"]
    version = None if text is None else parse_version(text)
    default_share = version_rules(version).default_utilization
    slots = LoraSlots(options["max_loras"], options["max_lora_rank"])
    return PlanRequest(
        gpu=device,
        engine=_engine(options["engine"], device, model),
        cpu_dtype=_cpu_dtype(model),
        free_ram_bytes=free_ram_bytes,
        tensor_parallel_size=options["tensor_parallel_size"],
        pipeline_parallel_size=options["pipeline_parallel_size"],
        data_parallel_size=options["data_parallel_size"],
        nnodes=options["nnodes"],
        api_server_count=options["api_server_count"],
        max_model_len=_length("--max-model-len", options["max_model_len"]),
        kv_cache_dtype=options["kv_cache_dtype"],
        quantization=options["quantization"],
        gpu_memory_utilization=default_share if share is None else share,
        max_num_seqs=options["max_num_seqs"],
        max_num_batched_tokens=_size("--max-num-batched-tokens", options["max_num_batched_tokens"]),
        block_size=options["block_size"],
        num_speculative_tokens=options["num_speculative_tokens"],
        enforce_eager=options["enforce_eager"],
        kv_memory_bytes=_size("--kv-cache-memory-bytes", options["kv_cache_memory_bytes"]),
        lora=slots if options["enable_lora"] else None,
        vllm_version=version,
        given=GivenGib(options["non_torch_gib"], options["peak_gib"], options["graph_gib"]),
    )


def planned_device(text: str) -> PlannedGpu | None:
    """The device; None is the CPU."""
    from app.output import say
    from app.planning.gpu_catalogue import find_gpu, gpu_of_reading
    from engine.machine.gpus import read_gpus

    if text == "cpu":
        return None
    if text != "auto":
        return find_gpu(text)
    reading = read_gpus()
    found = gpu_of_reading(reading)
    if found is None:
        reason = reading.reason or "NVML lists none"
        say(f"No GPU here ({reason}), so this is for the CPU; --gpu rtx4090 or 24GiB names another")
    return found


def _engine(asked: str | None, device: PlannedGpu | None, model: PlannedModel | None) -> str:
    from app.errors import UsageError
    from app.launch.engines import LLAMA_CPP, STOKER, VLLM
    from app.planning.plan_request import ENGINES

    is_gguf = model is not None and model.is_gguf
    suits = LLAMA_CPP if is_gguf else STOKER if device is None else VLLM
    engine = asked or suits
    reason = None
    if engine not in ENGINES:
        reason = f"--engine {engine} is not known; {', '.join(ENGINES)} are"
    elif engine == VLLM and is_gguf:
        reason = "vLLM 0.30.0 has no GGUF loader, so it cannot be planned with this file"
    elif engine == VLLM and asked and device is None:
        reason = "the vLLM wheel is the CUDA build; --gpu cpu plans Stoker's own engine"
    elif engine == LLAMA_CPP and not is_gguf:
        reason = "llama.cpp is planned with a GGUF file, whose header tells its size"
    if reason is not None:
        raise UsageError(reason)
    return engine


def _cpu_dtype(model: PlannedModel | None) -> str:
    """What our engine would run the model in, on this CPU."""
    from engine.args import cpu_dtype

    is_known = model is not None and not model.is_gguf
    implementation = model.shape.support.implementation if model and is_known else None
    return cpu_dtype(implementation or "stoker")


def free_ram() -> int:
    from engine.env import device_starts
    from engine.machine.ram_shares import RamShares

    return RamShares(device_starts("cpu")).left_for_new_start()


def _length(flag: str, text: str | None) -> int | None:
    return -1 if text in ("auto", "-1") else _size(flag, text)


def sizes(flag: str, text: str) -> tuple[int, ...]:
    """Numbers with commas between them."""
    found = (_size(flag, part) for part in text.split(",") if part.strip())
    return tuple(size for size in found if size)


def _size(flag: str, text: str | None) -> int | None:
    """A number as vLLM takes it: 4096, 4k, 4K, 2G."""
    import argparse

    from app.errors import UsageError
    from engine.args import human_readable_int

    if text is None:
        return None
    try:
        value = human_readable_int(text)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"{flag}: {error}") from error
    if value < 1:
        raise UsageError(f"{flag} {text} must be at least 1")
    return value
