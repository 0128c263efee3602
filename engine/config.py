"""EngineConfig: the resolved configuration of one engine, made of frozen sections.

Built once by `engine.args.EngineArgs.create_engine_config`; what is learnt later (number of blocks,
fitted lengths) is returned by whoever learns it, never written back. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.errors import ConfigError
from engine.lora_adapters import LoraRequest
from engine.model_config import ModelConfig
from engine.pooling_params import PoolingParams
from engine.speculative_config import SpeculativeConfig

DEFAULT_BLOCK_SIZE = 16
"""Tokens per KV block (vLLM's CacheConfig.DEFAULT_BLOCK_SIZE)."""

DEFAULT_MASTER_ADDR, DEFAULT_MASTER_PORT = "127.0.0.1", 29501
"""Where the nodes of an engine meet, as in vLLM."""

DEFAULT_NODE_TIMEOUT_S = 300.0
DEFAULT_UTILIZATION = 0.92
"""Share of the device's memory that one server takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """KV cache. `kv_cache_memory_bytes` overrides what `gpu_memory_utilization` would give."""

    block_size: int = DEFAULT_BLOCK_SIZE
    gpu_memory_utilization: float = DEFAULT_UTILIZATION
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    enable_prefix_caching: bool = True
    cache_dtype: str = "auto"  # auto = the model's own format; fp8 is e4m3 without a scale


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of one step; tokens and sequences."""

    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 128
    max_model_len: int = 8192
    enable_chunked_prefill: bool = True
    async_scheduling: bool = True  # plan a step while the last one runs, where a device can do it
    long_prefill_token_threshold: int = 0
    auto_fit_max_model_len: bool = False  # --max-model-len auto: shorten it to what fits
    policy: str = "fcfs"
    reserve_full_isl: bool = True
    speculative: SpeculativeConfig | None = None
    max_step_images: int | None = None  # that go through the tower in one step; None: no limit
    max_joint_prefill_tokens: int | None = None  # of several prompts in one step; None: no limit

    def __post_init__(self) -> None:
        if self.policy not in ("fcfs", "priority"):
            raise ConfigError(
                f"--scheduling-policy {self.policy!r} is not known; use fcfs or priority."
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ConfigError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens} is below --max-model-len "
                f"{self.max_model_len} while chunked prefill is off; raise the first, lower the "
                "second, or drop --no-enable-chunked-prefill."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """How many processes run the model: `tensor_parallel_size` ranks in each pipeline stage.

    World size 1 uses the `uni` executor, larger ones `mp`. `data_parallel_size` replicas are whole
    engines of their own; `data_parallel_rank` says which of them this configuration is for.

    With `nnodes` above 1 the ranks are on so many machines, the same number on each and in order;
    `node_rank` says which of them this is. Node 0 listens at `master_addr` and `master_port`.
    """

    executor_backend: str = "uni"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    data_parallel_rank: int = 0
    data_parallel_routing: str = "load"  # or prefix: to the replica that knows the prompt's start
    nnodes: int = 1
    node_rank: int = 0
    master_addr: str = DEFAULT_MASTER_ADDR
    master_port: int = DEFAULT_MASTER_PORT
    node_key_file: str | None = None  # with the secret that the nodes share
    distributed_timeout_s: float = DEFAULT_NODE_TIMEOUT_S  # what nodes wait for each other

    @property
    def world_size(self) -> int:
        """How many ranks one replica has: tensor times pipeline."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def local_ranks(self) -> range:
        """The ranks of this node; vLLM counts them in the same way."""
        return self.ranks_of_node(self.node_rank)

    def ranks_of_node(self, node: int) -> range:
        """Ranks are numbered node by node."""
        share = self.world_size // self.nnodes
        return range(node * share, (node + 1) * share)

    @property
    def engine_name(self) -> str:
        """What stands before the log lines of this engine's process, as vLLM names it."""
        if self.data_parallel_size == 1:
            return "EngineCore"
        return f"EngineCore_DP{self.data_parallel_rank}"


CPU_QUANTIZATIONS = ("int8", "int4")  # that the native kernels multiply
GPU_QUANTIZATIONS = ("int8", "fp8", "fp8_per_block")  # that Triton's multiply


def asks_for_triton(kernels: str, device: str) -> bool:
    """Whether `--kernels` means Triton's, as `auto` does wherever the device is no CPU."""
    return kernels == "triton" or (kernels == "auto" and device != "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """Where and in which number format the model runs. `device` is resolved: `cpu` or `cuda`."""

    device: str = "cpu"
    dtype: str = "bfloat16"  # bfloat16, float16 or float32
    num_threads: int | None = None  # CPU threads of the model step; None = one per core
    kernels: str = "auto"  # native, triton, reference, or auto = the best that runs
    quantization: str = "none"  # of weights, and for int8 and int4 of their inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilationConfig:
    """What the user asked about CUDA graphs; `engine.cuda_graph_sizes` turns it into sizes."""

    enforce_eager: bool = False
    optimization_level: int = 2  # -O0 to -O3
    cudagraph_capture_sizes: tuple[int, ...] | None = None  # None = vLLM's default list
    max_cudagraph_capture_size: int | None = None
    cudagraph_mode: str | None = None  # --compilation-config; None = what the level stands for


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservabilityConfig:
    """What is logged and measured. `log_stats_interval_s` is the throughput line's period."""

    log_stats: bool = True
    debug_endpoints: bool = False
    show_prompts: bool = False  # in the debug endpoints
    log_stats_interval_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig:
    """What is answered: requests for text, for embeddings, and how those are pooled."""

    can_generate: bool = True
    can_embed: bool = True
    pooling: PoolingParams = field(default_factory=PoolingParams)
    has_text_model: bool = True  # False: the model has no head, whatever flags say

    @property
    def names(self) -> tuple[str, ...]:
        """vLLM's words for the tasks."""
        return ("generate",) * self.can_generate + ("embed",) * self.can_embed


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """Adapters beside the model's linears: those of the start, and the limits of all.

    `max_loras` is of one step; `max_cpu_loras` of those that are held, None for no limit.
    """

    max_loras: int = 1
    max_lora_rank: int = 16
    max_cpu_loras: int | None = None
    modules: tuple[LoraRequest, ...] = ()

    @property
    def num_reserved(self) -> int:
        """How many adapters memory is kept free for."""
        return max(self.max_loras, self.max_cpu_loras or 0, len(self.modules))


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiModalConfig:
    """What prompts may hold besides text."""

    max_images: int = 0  # of one prompt; 0: the model's tower is not loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything EngineCore needs; travels to it as msgpack in the handshake."""

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    parallel: ParallelConfig = ParallelConfig()
    device: DeviceConfig = DeviceConfig()
    compilation: CompilationConfig = CompilationConfig()
    observability: ObservabilityConfig = ObservabilityConfig()
    tasks: TaskConfig = TaskConfig()
    lora: LoraConfig | None = None  # None: no adapters
    multimodal: MultiModalConfig = MultiModalConfig()
    seed: int = 0
    shutdown_timeout_s: float = 5.0
