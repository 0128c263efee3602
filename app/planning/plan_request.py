"""What is asked of a plan: the device and flags, checked against the model, and the defaults."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.errors import UsageError
from app.launch.engines import LLAMA_CPP, STOKER, VLLM
from app.planning.gpu_catalogue import PlannedGpu
from app.planning.lora_weights import LoraSlots
from app.planning.memory_estimates import Calibration, GivenGib
from app.planning.model_shapes import ModelShape
from app.planning.vllm_versions import Version
from engine.config import CPU_QUANTIZATIONS, DEFAULT_UTILIZATION, GPU_QUANTIZATIONS
from engine.kv_sizing import pipeline_stages
from engine.model_support import Support
from engine.step_budget import StepBudget, StepDevice, step_budget

_VOCABULARY_MULTIPLE = 64  # DEFAULT_VOCAB_PADDING_SIZE of vLLM
LEAST_LENGTH = 128
"""Shorter requests than this are nothing to advise."""
ENGINES = (VLLM, STOKER, LLAMA_CPP)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What is asked: the device and the flags, in vLLM's spelling. None means the default.

    `gpu` None plans our own engine on a CPU with `free_ram_bytes`, where models run in `cpu_dtype`.
    `max_model_len` -1 is the longest that fits. `kv_memory_bytes` replaces the prediction of the
    KV cache's share. `calibration` is what earlier starts teach.
    """

    gpu: PlannedGpu | None
    engine: str = VLLM
    free_ram_bytes: int = 0
    cpu_dtype: str = "bfloat16"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    nnodes: int = 1
    api_server_count: int | None = None  # as many as copies
    max_model_len: int | None = None
    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    gpu_memory_utilization: float = DEFAULT_UTILIZATION
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    num_speculative_tokens: int = 0
    enforce_eager: bool = False
    kv_memory_bytes: int | None = None
    lora: LoraSlots | None = None
    vllm_version: Version | None = None  # None: the newest, with the spread of all in use
    given: GivenGib = field(default_factory=GivenGib)
    calibration: Calibration | None = None

    @property
    def num_api_servers(self) -> int:
        """As many as copies of the model, where no other number is asked for."""
        return self.data_parallel_size if self.api_server_count is None else self.api_server_count


def require_possible(shape: ModelShape, request: PlanRequest) -> None:
    """Raise StokerError (2) for flags that cannot work with this model."""
    tensor, pipeline = request.tensor_parallel_size, request.pipeline_parallel_size
    if min(tensor, pipeline, request.data_parallel_size) < 1:
        raise UsageError("parallel sizes are at least 1")
    if not 0.0 < request.gpu_memory_utilization <= 1.0:
        raise UsageError(
            f"--gpu-memory-utilization {request.gpu_memory_utilization} is not in (0, 1]"
        )
    if not _divides(shape, tensor):
        sizes = ", ".join(map(str, parallel_sizes(shape)))
        raise UsageError(
            f"--tp {tensor} does not divide the {shape.num_heads} attention heads "
            f"({shape.num_kv_heads} for keys and values) of {shape.name}",
            hint=f"sizes that do: {sizes}",
        )
    _require_vllm_limits(request)
    if request.engine == STOKER and (refused := own_refusal(shape.support, request)) is not None:
        flag, reason = refused
        raise UsageError(
            f"{flag} cannot be had with {shape.name} in Stoker's own engine: {reason}",
            hint=f"leave {flag} out",
        )
    _require_nodes(request)
    if pipeline > shape.num_layers:
        raise UsageError(
            f"--pp {pipeline} is more than the {shape.num_layers} layers of {shape.name}"
        )
    for stage in pipeline_stages(shape.num_layers, pipeline):
        if not any(shape.layer_caches[layer].keeps_something for layer in stage):
            raise UsageError(
                f"--pp {pipeline} makes a stage of layers {stage.start} to {stage.stop - 1} of "
                f"{shape.name}, none of which keeps a cache of its own"
            )
    if request.engine == LLAMA_CPP and tensor * pipeline > 1:
        raise UsageError(
            f"{request.engine} is planned on one device only", hint="leave --tp and --pp out"
        )
    if request.engine == LLAMA_CPP and request.data_parallel_size > 1:
        raise UsageError("llama-server runs one copy of a model", hint="leave --dp out")
    if request.engine == LLAMA_CPP and request.num_api_servers > 1:
        raise UsageError("llama-server is one process", hint="leave --api-server-count out")
    formats = _load_formats(request)
    if request.quantization is not None and request.quantization not in formats:
        where = "CPU" if request.gpu is None else "GPU"
        raise UsageError(
            f"--quantization {request.quantization} is nothing that {request.engine} does while it "
            f"loads on a {where}, as far as `stoker plan` knows",
            hint=f"{' and '.join(formats) or 'nothing'} can be planned there; a checkpoint that is "
            "quantised already needs no flag",
        )
    if request.quantization and shape.quantization and request.engine != STOKER:
        raise UsageError(f"{shape.name} is quantised already ({shape.quantization})")


def _require_nodes(request: PlanRequest) -> None:
    nodes, ranks = request.nnodes, request.tensor_parallel_size * request.pipeline_parallel_size
    if nodes == 1:
        return
    if request.engine == LLAMA_CPP:
        raise UsageError("llama-server runs on one machine", hint="leave --nnodes out")
    if ranks % nodes:
        raise UsageError(
            f"--nnodes {nodes} does not divide the {ranks} ranks of --tp and --pp",
            hint="each machine has as many ranks",
        )
    if request.data_parallel_size > 1:
        raise UsageError(
            f"--nnodes {nodes} is planned for one copy of the model",
            hint="leave --dp out, and start such a group for each copy",
        )


def own_refusal(support: Support, request: PlanRequest) -> tuple[str, str] | None:
    """The first flag that our own engine refuses for a model it serves, and why."""
    is_split = max(request.tensor_parallel_size, request.pipeline_parallel_size) > 1
    is_own_code = support.implementation != "transformers"
    for flag, is_given, is_possible, reason in (
        ("--tp and --pp", is_split, is_own_code, "it splits only what its own code runs"),
        (
            "--quantization",
            request.quantization is not None,
            is_own_code,
            "it quantises only what its own code runs",
        ),
        (
            "--num-speculative-tokens",
            request.num_speculative_tokens > 0,
            not is_split,
            "it guesses tokens on one rank only",
        ),
        (
            "--num-speculative-tokens",
            request.num_speculative_tokens > 0,
            not support.keeps_own_cache,
            "the model's cache is transformers', which cannot be wound back",
        ),
        (
            "--kv-cache-dtype",
            request.kv_cache_dtype.startswith("fp8"),
            not support.keeps_own_cache,
            "the model's cache is transformers', which is not stored otherwise",
        ),
        (
            "--enable-lora",
            request.lora is not None,
            not support.is_encoder,
            "adapters work with decoders, and the model is an encoder",
        ),
        (
            "--enable-lora",
            request.lora is not None,
            not support.keeps_own_cache,
            "adapters are not added to layers that transformers caches itself",
        ),
    ):
        if is_given and not is_possible:
            return flag, reason
    return None


def _require_vllm_limits(request: PlanRequest) -> None:
    """What vLLM's SchedulerConfig and its attention on GPUs refuse."""
    if request.engine != VLLM or request.gpu is None:
        return
    tokens, seqs = request.max_num_batched_tokens, request.max_num_seqs
    if tokens is not None and seqs is not None and tokens < seqs:
        raise UsageError(
            f"--max-num-batched-tokens {tokens} is below --max-num-seqs {seqs}, which vLLM refuses",
            hint=f"use --max-num-seqs {tokens} or less",
        )
    if request.block_size is not None and request.block_size % 16:
        raise UsageError(
            f"--block-size {request.block_size} is no multiple of 16, as vLLM's attention needs it",
            hint=f"use --block-size {-(-request.block_size // 16) * 16}",
        )


def _load_formats(request: PlanRequest) -> tuple[str, ...]:
    """What `--quantization` may be there."""
    if request.engine == STOKER:
        return CPU_QUANTIZATIONS if request.gpu is None else GPU_QUANTIZATIONS
    return ("fp8",) if request.engine == VLLM else ()


def asked_model_len(shape: ModelShape, request: PlanRequest) -> int:
    """The length asked for; the model's own limit for none and for `auto`."""
    asked = request.max_model_len
    if asked is None or asked == -1:
        return shape.max_model_len
    if request.engine == STOKER and asked == 1:
        raise UsageError("--max-model-len 1 leaves no room for an answer", hint="use 2 or more")
    if not 1 <= asked <= shape.max_model_len:
        raise UsageError(
            f"--max-model-len {asked} is not within the {shape.max_model_len} positions that "
            f"{shape.name} was made for",
            hint=f"use {shape.max_model_len} or less",
        )
    return asked


def planned_step_budget(request: PlanRequest, max_model_len: int) -> StepBudget:
    """The limits of a step on the planned device, as the engine sets them."""
    gpu = request.gpu
    device = StepDevice() if gpu is None else StepDevice(gpu.name, gpu.memory_bytes)
    return step_budget(
        device,
        max_model_len,
        max_num_batched_tokens=request.max_num_batched_tokens,
        max_num_seqs=request.max_num_seqs,
    )


def require_whole_texts(
    shape: ModelShape, request: PlanRequest, num_tokens: int, length: int
) -> None:
    """Raise StokerError (2) where a step of `num_tokens` is too small for an encoder of ours."""
    if request.engine == STOKER and shape.support.is_encoder and num_tokens < length:
        raise UsageError(
            f"--max-num-batched-tokens {num_tokens} is below the {length} tokens of "
            f"--max-model-len, and Stoker's own engine reads a text of {shape.name}, an encoder, "
            "in one step",
            hint=f"use --max-num-batched-tokens {length}, or a lower --max-model-len",
        )


def parallel_sizes(shape: ModelShape, most: int = 16) -> tuple[int, ...]:
    """Tensor-parallel sizes that vLLM can split this model over."""
    return tuple(size for size in range(1, most + 1) if _divides(shape, size))


def _divides(shape: ModelShape, size: int) -> bool:
    """Whether the heads split into equal parts, the KV heads too or each of them on equally many
    ranks, and the rows of the vocabulary, which vLLM pads to a multiple of 64.
    """
    heads, kv_heads = shape.num_heads, 1 if shape.latent else shape.num_kv_heads
    vocabulary = -(-shape.vocab_size // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE
    has_equal_kv = kv_heads % size == 0 or size % kv_heads == 0
    return heads % size == 0 and has_equal_kv and vocabulary % size == 0
