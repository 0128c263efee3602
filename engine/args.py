"""EngineArgs: every `serve` flag once, as a field with its help text; spelled as vLLM spells it.

`add_cli_args` turns the fields into argparse options, `create_engine_config` turns values into an
EngineConfig. Defaults that depend on the device follow vLLM's EngineArgs.get_batch_defaults.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from engine.compilation_config import merged_compilation
from engine.config import (
    CPU_QUANTIZATIONS,
    DEFAULT_BLOCK_SIZE,
    DEFAULT_MASTER_ADDR,
    DEFAULT_MASTER_PORT,
    DEFAULT_NODE_TIMEOUT_S,
    DEFAULT_UTILIZATION,
    GPU_QUANTIZATIONS,
    CacheConfig,
    CompilationConfig,
    DeviceConfig,
    EngineConfig,
    LoraConfig,
    MultiModalConfig,
    ObservabilityConfig,
    ParallelConfig,
    SchedulerConfig,
    TaskConfig,
    asks_for_triton,
)
from engine.cuda_graph_sizes import CaptureRules, capture_sizes
from engine.env import HostDevice, cpu_has_bf16
from engine.errors import ConfigError
from engine.lora_adapters import MOST_LORA_RANK, LoraRequest, absolute_folder, parse_lora_module
from engine.model_config import ModelConfig
from engine.multimodal_limits import DEFAULT_IMAGES, parse_image_limit
from engine.node_key import NODE_KEY_VARIABLE
from engine.parser_choice import AUTO, NONE, REASONING_PARSER_NAMES, TOOL_PARSER_NAMES
from engine.pooling_params import parse_pooler_config
from engine.rank_layout import MOST_RANKS, require_layout_fits, require_nodes_fit
from engine.sampling_params import MAX_LOGPROBS
from engine.speculative_config import SpeculativeConfig, parse_speculative_config
from engine.step_budget import StepBudget, StepDevice, step_budget

_DTYPES = ("auto", "bfloat16", "float16", "float32")
_QUANTIZATIONS = tuple(dict.fromkeys(CPU_QUANTIZATIONS + GPU_QUANTIZATIONS))
"""What weights can be rounded to while they are loaded, on one device or another."""

_CACHE_DTYPES = ("auto", "fp8", "fp8_e4m3")
_EXECUTOR_BACKENDS = ("uni", "mp", "ray")
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_MOST = (1 << 63) - 1  # what the messages between the processes carry
_MOST_DIGITS = 24  # of a number that is typed; what has fewer is told its flag's own limit
_MOST_COUNTED = 1 << 20  # requests, tokens of a step, threads: tables have a row for each
MOST_REPLICAS = 256
_LONGEST_TIMEOUT_S = 86_400.0
_BINARY_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def human_readable_int(text: str) -> int:
    """`1k` = 1000, `1K` = 1024, also m/M g/G t/T (and `4GiB`); decimals with lower case only."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)(?:iB)?", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number like 4096, 4k, 4K or 4GiB")
    number, unit = match.groups()
    if "." in number and unit not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r}: decimals need a lower-case unit, as in 25.6k")
    if (digits := len(number.replace(".", ""))) > _MOST_DIGITS:
        raise argparse.ArgumentTypeError(
            f"a number has at most {_MOST_DIGITS} digits, and this one has {digits}"
        )
    factor = {**_UNITS, **_BINARY_UNITS, "": 1}[unit]
    return int(float(number) * factor) if "." in number else int(number) * factor


def with_dashes(word: str) -> str:
    """`--max_model_len=9` -> `--max-model-len=9`, as vLLM accepts both; other words as they are."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def without_short_words(words: Sequence[str]) -> list[str]:
    """`-dp=2` -> `--data-parallel-size=2`: short forms of more than one letter written out."""
    known = {
        entry.metadata["short"]: "--" + entry.name.replace("_", "-")
        for entry in dataclasses.fields(EngineArgs)
        if len(entry.metadata["short"] or "") > len("-x") and entry.metadata["short"][1] != "-"
    }
    parts = [word.partition("=") for word in words]
    return [known.get(name, name) + equals + value for name, equals, value in parts]


def _model_len(text: str) -> int:
    """A length, or -1 for `auto` (the longest that fits the memory)."""
    return -1 if text in ("auto", "-1") else human_readable_int(text)


def _json_words(text: str) -> tuple[str, ...]:
    """`["https://a.example"]`, as vLLM takes lists of words; a bare word is a list of one."""
    try:
        value = json.loads(text) if text.lstrip().startswith("[") else [text]
    except ValueError:
        value = None
    if isinstance(value, list) and all(isinstance(word, str) and word for word in value):
        return tuple(value)
    raise argparse.ArgumentTypeError(f'{text!r} is not a JSON list of words like ["a", "b"]')


def _lora_module(text: str) -> str:
    try:
        parse_lora_module(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _flag(
    default: Any,
    help_text: str,
    *,
    parse: Callable[[str], Any] | None = None,
    choices: Sequence[str] | None = None,
    short: str | None = None,
    nargs: str | None = None,
) -> Any:
    metadata = {"help": help_text, "parse": parse, "choices": choices, "short": short}
    return field(default=default, metadata={**metadata, "nargs": nargs})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineArgs:
    """Flags of `python -m engine serve`; None means "resolved later", as in vLLM."""

    served_model_name: str | None = _flag(None, "Name clients use; default: the model argument.")
    host: str = _flag("127.0.0.1", "Address to listen on; 0.0.0.0 opens it to the network.")
    port: int = _flag(8000, "TCP port.")
    uds: str | None = _flag(None, "Socket file (0600) to listen on, in place of host and port.")
    api_key: str | None = _flag(
        None, "Key that /v1 requests must carry; better given as STOKER_API_KEY."
    )
    allowed_origins: tuple[str, ...] = _flag(
        (),
        'Web pages that may use this server (CORS), a JSON list; ["*"] is every page.',
        parse=_json_words,
    )
    allowed_methods: tuple[str, ...] = _flag(
        ("*",), "HTTP methods that those pages may use, a JSON list.", parse=_json_words
    )
    allowed_headers: tuple[str, ...] = _flag(
        ("*",), "Request headers that those pages may send, a JSON list.", parse=_json_words
    )
    allow_credentials: bool = _flag(False, "Let those pages send cookies and HTTP logins.")
    allowed_hosts: tuple[str, ...] = _flag(
        (),
        "Names under which a keyless server on loopback may be called, beside localhost and "
        'this machine\'s, a JSON list; ["*"] is any.',
        parse=_json_words,
    )
    allowed_media_domains: tuple[str, ...] = _flag(
        (),
        "Hosts from which images at http and https addresses are fetched, several words; '*' is "
        "any public one. Default: none.",
        parse=str,
        nargs="+",
    )
    dtype: str = _flag("auto", "Number format of weights and activations.", choices=_DTYPES)
    device: str = _flag("auto", "Where the model runs.", choices=("auto", "cpu", "cuda"))
    num_threads: int | None = _flag(None, "CPU threads of the model step; default: one per core.")
    tensor_parallel_size: int = _flag(
        1, "Ranks (devices, or processes on a CPU) that share each layer.", short="-tp"
    )
    pipeline_parallel_size: int = _flag(
        1, "Stages of consecutive layers, each on ranks of its own.", short="-pp"
    )
    distributed_executor_backend: str | None = _flag(
        None,
        "What runs the ranks: uni (one, inside EngineCore), mp (a process each, on --nnodes "
        "machines) or ray (an actor each, in a Ray cluster); default: uni for one rank, else mp.",
        choices=_EXECUTOR_BACKENDS,
    )
    nnodes: int = _flag(
        1, "Machines that the ranks are spread over, each with as many of them.", short="-n"
    )
    node_rank: int = _flag(
        0, "Which of the --nnodes machines this is; 0 has the API server.", short="-r"
    )
    master_addr: str = _flag(
        DEFAULT_MASTER_ADDR, "Address of node 0 at which it waits for the other nodes."
    )
    master_port: int = _flag(DEFAULT_MASTER_PORT, "TCP port of node 0 for the other nodes.")
    headless: bool = _flag(
        False, "Ranks only, no API server; what every node but 0 is, also without this flag."
    )
    node_key_file: str | None = _flag(
        None, f"File with the secret that all nodes share; or set {NODE_KEY_VARIABLE}."
    )
    distributed_timeout_seconds: float = _flag(
        DEFAULT_NODE_TIMEOUT_S, "Seconds that nodes wait for each other at the start."
    )
    kernels: str = _flag(
        "auto",
        "Kernels of the model step: triton for GPUs, native is C++ for CPUs, reference is torch.",
        choices=("auto", "native", "triton", "reference"),
        short="--attention-backend",
    )
    quantization: str = _flag(
        "none",
        "Round weights on load: to int8 or int4 on a CPU, to int8, fp8 or fp8_per_block on a GPU.",
        choices=("none", *_QUANTIZATIONS),
        short="-q",
    )
    model_impl: str = _flag(
        "auto",
        "Whose code runs the model; auto: Stoker's where it has some, else transformers'.",
        choices=("auto", "stoker", "transformers"),
    )
    seed: int = _flag(0, "Seed of requests that bring none.")
    max_model_len: int | None = _flag(
        None, "Longest prompt plus output, in tokens; auto fits it to the memory.", parse=_model_len
    )
    max_num_batched_tokens: int | None = _flag(
        None, "Token budget of one step.", parse=human_readable_int
    )
    max_num_seqs: int | None = _flag(None, "Most requests that run at once.")
    max_num_queued_reqs: int | None = _flag(
        None, "Most requests that may wait; further ones are refused with 429. Default: no limit."
    )
    max_num_queued_tokens: int | None = _flag(
        None,
        "Requests are refused with 429 while this many prompt tokens wait. Default: no limit.",
        parse=human_readable_int,
    )
    ttft_target_ms: float | None = _flag(
        None,
        "Requests are refused with 429 when their first token is expected later than this. "
        "Default: no limit.",
    )
    enable_chunked_prefill: bool = _flag(True, "Split long prompts over several steps.")
    async_scheduling: bool = _flag(True, "Plan the next step while a GPU runs the last one.")
    long_prefill_token_threshold: int = _flag(
        0, "Most prompt tokens one request gets per step; 0 is off."
    )
    scheduling_policy: str = _flag(
        "fcfs",
        "Order of waiting requests. With `priority` a request waits for as long as more urgent "
        "ones keep coming.",
        choices=("fcfs", "priority"),
    )
    data_parallel_size: int = _flag(
        1, "Replicas of the model, each an engine of its own.", short="-dp"
    )
    data_parallel_routing: str = _flag(
        "load",
        "Which replica gets a request: the least loaded one, or with `prefix` first the one that "
        "served a prompt with the same beginning, unless it has much more to do.",
        choices=("load", "prefix"),
    )
    api_server_count: int | None = _flag(
        None, "API server processes; default: as many as replicas.", short="-asc"
    )
    block_size: int | None = _flag(None, f"Tokens per KV block; default {DEFAULT_BLOCK_SIZE}.")
    gpu_memory_utilization: float = _flag(
        DEFAULT_UTILIZATION,
        "Share of the device's memory for this server (on a CPU: of the free RAM).",
    )
    kv_cache_memory_bytes: int | None = _flag(
        None, "KV cache size in bytes, e.g. 2G; overrides the share.", parse=human_readable_int
    )
    num_gpu_blocks_override: int | None = _flag(None, "Fix the number of KV blocks (for tests).")
    kv_cache_dtype: str = _flag(
        "auto", "Number format of the KV cache; fp8 halves its bytes.", choices=_CACHE_DTYPES
    )
    enable_prefix_caching: bool = _flag(True, "Reuse KV blocks of equal prompt beginnings.")
    enforce_eager: bool = _flag(False, "No CUDA graphs.")
    optimization_level: int = _flag(
        2, "-O0: no CUDA graphs, -O1: piecewise, -O2, -O3: full ones too.", short="-O"
    )
    cudagraph_capture_sizes: tuple[int, ...] | None = _flag(
        None, "Batch sizes of CUDA graphs, e.g. 1 2 4 8.", parse=int, nargs="+"
    )
    max_cudagraph_capture_size: int | None = _flag(None, "Largest batch size of a CUDA graph.")
    compilation_config: str | None = _flag(
        None,
        'CUDA graphs as JSON: {"cudagraph_mode": "PIECEWISE", "cudagraph_capture_sizes": [1, 2]}.',
    )
    speculative_config: str | None = _flag(
        None,
        'Several tokens a step, guessed from the text so far: {"method": "ngram"}, the default '
        "with native kernels on one rank; null turns it off.",
    )
    runner: str = _flag(
        "auto",
        "pooling: embeddings only; else the server answers chat and embeddings.",
        choices=("auto", "generate", "pooling"),
    )
    convert: str = _flag(
        "auto",
        "none: no embeddings; every model served here can make them.",
        choices=("auto", "none", "embed"),
    )
    pooler_config: str | None = _flag(
        None, 'How embeddings are pooled: {"pooling_type": "LAST"} (default) or "MEAN".'
    )
    limit_mm_per_prompt: str | None = _flag(
        None,
        'Most images of one prompt: {"image": 4}; with 0 the model\'s tower is not loaded. '
        f"Default: {DEFAULT_IMAGES}.",
    )
    chat_template: str | None = _flag(
        None, "File with a Jinja chat template, or chatml for that plain form."
    )
    enable_auto_tool_choice: bool = _flag(
        False, "Taken from vLLM's command lines; the model may choose wherever there is a parser."
    )
    tool_call_parser: str = _flag(
        "auto",
        "How the model writes tool calls; auto looks into its chat template.",
        choices=(AUTO, NONE, *TOOL_PARSER_NAMES),
    )
    reasoning_parser: str = _flag(
        "auto",
        "How the model marks its thoughts; auto looks into its chat template.",
        choices=(AUTO, NONE, *REASONING_PARSER_NAMES),
    )
    enable_sleep_mode: bool = _flag(
        False, "Let clients put the server to sleep, which frees memory, and wake it."
    )
    enable_lora: bool = _flag(False, "Serve LoRA adapters, each under a model name of its own.")
    lora_modules: tuple[str, ...] = _flag(
        (),
        'Adapters from the start: NAME=PATH, or {"name": "NAME", "path": "PATH"}; several words.',
        parse=_lora_module,
        nargs="+",
    )
    max_loras: int = _flag(1, "Most different adapters in one step.")
    max_lora_rank: int = _flag(16, "Highest rank of an adapter.")
    max_cpu_loras: int | None = _flag(None, "Most adapters held at once; default: no limit.")
    generation_config: str = _flag(
        "auto",
        "Sampling defaults: auto (the model's generation_config.json), vllm (none), or a folder.",
    )
    max_logprobs: int = _flag(
        MAX_LOGPROBS, "Most logprobs per token that a request may ask for; -1: all tokens."
    )
    enable_debug_endpoints: bool = _flag(
        False, "Answer /debug (scheduler, requests, blocks; cancel a request); needs the key."
    )
    show_prompts: bool = _flag(
        False, "Tell the prompt's text in /debug too; needs --enable-debug-endpoints."
    )
    record_traffic: str | None = _flag(
        None,
        "File for a line per request: when it came, lengths, shared beginnings, no text. "
        "`stoker bench --replay` reads it.",
    )
    record_traffic_max_bytes: int = _flag(
        1 << 30, "Where the recording ends, e.g. 200M.", parse=human_readable_int
    )
    enable_tokenizer_info_endpoint: bool = _flag(
        False, "Answer /tokenizer_info: tokenizer_config.json and the chat template."
    )
    enable_log_requests: bool = _flag(False, "Log the parameters of each request.")
    disable_log_stats: bool = _flag(False, "No throughput line and no engine metrics.")
    disable_uvicorn_access_log: bool = _flag(False, "No line per HTTP request.")
    shutdown_timeout: float = _flag(
        5.0, "Seconds that requests in flight get after SIGINT or SIGTERM."
    )

    @classmethod
    def add_cli_args(cls, parser: argparse.ArgumentParser) -> None:
        """Add one option per field; booleans get their `--no-` twin."""
        types = get_type_hints(cls)
        for entry in dataclasses.fields(cls):
            option = "--" + entry.name.replace("_", "-")
            meta = entry.metadata
            if types[entry.name] is bool:
                parser.add_argument(
                    option,
                    action=argparse.BooleanOptionalAction,
                    default=entry.default,
                    help=meta["help"],
                )
                continue
            parser.add_argument(
                *([meta["short"]] if meta["short"] else []),
                option,
                dest=entry.name,
                type=meta["parse"] or _plain_type(types[entry.name]),
                default=entry.default,
                choices=meta["choices"],
                nargs=meta["nargs"],
                help=meta["help"],
            )

    @classmethod
    def from_cli(cls, namespace: argparse.Namespace) -> EngineArgs:
        """Collect the fields from a parsed command line."""
        values: dict[str, Any] = {}
        for entry in dataclasses.fields(cls):
            value = getattr(namespace, entry.name)
            values[entry.name] = tuple(value) if isinstance(value, list) else value
        return cls(**values)

    def non_default(self) -> dict[str, Any]:
        """Fields that differ from their default, the API key masked (for the log)."""
        changed = {
            entry.name: getattr(self, entry.name)
            for entry in dataclasses.fields(self)
            if getattr(self, entry.name) != entry.default
        }
        if "api_key" in changed:
            changed["api_key"] = "***"
        return changed

    def create_engine_config(self, model: ModelConfig, host: HostDevice) -> EngineConfig:
        """Resolve every None for `model` on `host`; ConfigError names the flag, value and limit."""
        self._check_ranges()
        device = host.kind if self.device == "auto" else self.device
        if model.keeps_own_cache:
            self._require_no_cache_flags(model)
        max_model_len = self._resolve_max_model_len(model)
        is_chunked = self.enable_chunked_prefill and not model.is_encoder
        budget = step_budget(
            StepDevice(host.name, host.memory_bytes or 0) if device == "cuda" else StepDevice(),
            max_model_len,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_seqs=self.max_num_seqs,
            enable_chunked_prefill=is_chunked,
        )
        if model.is_encoder and budget.max_num_batched_tokens < max_model_len:
            raise ConfigError(
                f"--max-num-batched-tokens {budget.max_num_batched_tokens} is below the "
                f"{max_model_len} tokens of --max-model-len, and an encoder reads each text in one "
                "step; raise the first, or lower the second."
            )
        tokens, seqs = budget.max_num_batched_tokens, budget.max_num_seqs
        device_config = DeviceConfig(
            device=device,
            dtype=_resolve_dtype(self.dtype, model, device),
            num_threads=self.num_threads,
            kernels=self.kernels,
            quantization=self._resolve_quantization(model, device),
        )
        return EngineConfig(
            model=model,
            cache=CacheConfig(
                block_size=self.block_size or DEFAULT_BLOCK_SIZE,
                gpu_memory_utilization=self.gpu_memory_utilization,
                kv_cache_memory_bytes=self.kv_cache_memory_bytes,
                num_gpu_blocks_override=self._num_blocks(model, budget),
                enable_prefix_caching=self.enable_prefix_caching
                and not model.is_encoder
                and not model.keeps_own_cache,
                cache_dtype=self.kv_cache_dtype,
            ),
            scheduler=SchedulerConfig(
                max_num_batched_tokens=tokens,
                max_num_seqs=seqs,
                max_model_len=max_model_len,
                auto_fit_max_model_len=self.max_model_len == -1,
                enable_chunked_prefill=is_chunked,
                async_scheduling=self.async_scheduling,
                long_prefill_token_threshold=0
                if model.is_encoder
                else self.long_prefill_token_threshold,
                policy=self.scheduling_policy,
                speculative=self._speculative(model, device_config),
                # Half a minute each on two cores; a prompt that may not be cut takes all its own.
                max_step_images=1 if device == "cpu" and is_chunked else None,
            ),
            parallel=self._parallel(model),
            device=device_config,
            compilation=self._compilation(tokens, seqs),
            observability=ObservabilityConfig(
                log_stats=not self.disable_log_stats,
                debug_endpoints=self.enable_debug_endpoints,
                show_prompts=self.show_prompts,
            ),
            tasks=self._tasks(model),
            lora=self._lora(model),
            multimodal=self._multimodal(model, tokens),
            seed=self.seed,
            shutdown_timeout_s=self.shutdown_timeout,
        )

    def _resolve_quantization(self, model: ModelConfig, device: str) -> str:
        asked = self.quantization
        if asked == "none":
            return asked
        is_triton = asks_for_triton(self.kernels, device)
        known = GPU_QUANTIZATIONS if is_triton else CPU_QUANTIZATIONS
        if model.implementation != "stoker":
            raise ConfigError(
                f"--quantization {asked} is not there for {model.architecture}, which "
                "transformers' code runs; leave it out."
            )
        if asked not in known:
            kernels = f" with --kernels {self.kernels}" * (self.kernels != "auto")
            raise ConfigError(
                f"--quantization {asked} is not there on the device {device}{kernels}; use "
                f"{' or '.join(known)}, or leave it out."
            )
        return asked

    @property
    def likely_parallel(self) -> ParallelConfig:
        """The layout that these flags ask for, if it can be had at all; vLLM's ParallelConfig picks
        the executor in the same way.
        """
        num_ranks = self.tensor_parallel_size * self.pipeline_parallel_size
        return ParallelConfig(
            executor_backend=self.distributed_executor_backend
            or ("uni" if num_ranks == 1 else "mp"),
            tensor_parallel_size=self.tensor_parallel_size,
            pipeline_parallel_size=self.pipeline_parallel_size,
            data_parallel_size=self.data_parallel_size,
            data_parallel_routing=self.data_parallel_routing,
            nnodes=self.nnodes,
            node_rank=self.node_rank,
            master_addr=self.master_addr,
            master_port=self.master_port,
            node_key_file=self.node_key_file,
            distributed_timeout_s=self.distributed_timeout_seconds,
        )

    @property
    def is_headless(self) -> bool:
        """Whether this start only has ranks of an engine whose API server is on node 0."""
        return self.nnodes > 1 and self.node_rank > 0

    @property
    def num_api_servers(self) -> int:
        """As many as replicas, where no other number is asked for; vLLM's rule."""
        asked = self.data_parallel_size if self.api_server_count is None else self.api_server_count
        return asked if 1 <= asked <= MOST_REPLICAS else 1  # the start refuses any other

    def _parallel(self, model: ModelConfig) -> ParallelConfig:
        parallel = self.likely_parallel
        backend, num_ranks = parallel.executor_backend, parallel.world_size
        if backend == "uni" and num_ranks > 1:
            raise ConfigError(
                f"--distributed-executor-backend uni runs one rank, and {num_ranks} are asked for; "
                "use mp, or leave it out."
            )
        if backend == "mp" and sys.platform != "linux":
            raise ConfigError("--distributed-executor-backend mp needs Linux; leave it out.")
        require_nodes_fit(parallel, is_headless=self.headless)
        require_layout_fits(model, parallel)
        return parallel

    def _speculative(self, model: ModelConfig, device: DeviceConfig) -> SpeculativeConfig | None:
        """Without the flag there are drafts where they may cost nothing; which kernels run, and so
        whether they do, is known once the worker has chosen them.
        """
        speculative = parse_speculative_config(self.speculative_config)
        if self.speculative_config is None and self._may_draft(model, device):
            return SpeculativeConfig(is_default=True)
        if speculative is not None and self.likely_parallel.world_size > 1:
            raise ConfigError(
                "--speculative-config works on one rank only; leave it out, or leave out "
                "--tensor-parallel-size and --pipeline-parallel-size."
            )
        return speculative

    def _may_draft(self, model: ModelConfig, device: DeviceConfig) -> bool:
        may_be_native = (
            device.device == "cpu"
            and device.kernels in ("auto", "native")
            and device.dtype == "bfloat16"
            and model.implementation == "stoker"
        )
        generates = model.has_head and self.runner != "pooling"
        return may_be_native and generates and self.likely_parallel.world_size == 1

    def _require_no_cache_flags(self, model: ModelConfig) -> None:
        """Of one whose cache is transformers': it cannot be stored otherwise nor wound back, and
        its layers are not those that adapters are added to.
        """
        for flag, given in (
            ("--kv-cache-dtype", self.kv_cache_dtype != "auto"),
            ("--speculative-config", parse_speculative_config(self.speculative_config) is not None),
            ("--enable-lora", self.enable_lora),
        ):
            if given:
                raise ConfigError(
                    f"{flag} cannot be had: {model.architecture} keeps what its requests need in "
                    "transformers' own cache. Leave it out."
                )

    def _num_blocks(self, model: ModelConfig, budget: StepBudget) -> int | None:
        """An encoder's blocks hold nothing: as many as the texts of one step can ask for."""
        if not model.is_encoder or self.num_gpu_blocks_override is not None:
            return self.num_gpu_blocks_override
        size = self.block_size or DEFAULT_BLOCK_SIZE
        return budget.max_num_batched_tokens // size + budget.max_num_seqs + 1

    def _tasks(self, model: ModelConfig) -> TaskConfig:
        if not model.has_head and (self.runner == "generate" or self.convert == "none"):
            asked = "--runner generate" if self.runner == "generate" else "--convert none"
            raise ConfigError(
                f"{asked} cannot be had: {model.path} holds a model without a head for text, which "
                "answers embeddings only. Leave it out."
            )
        if self.runner == "pooling" and self.convert == "none":
            raise ConfigError(
                "--runner pooling with --convert none leaves nothing to serve; drop one of them."
            )
        return TaskConfig(
            can_generate=self.runner != "pooling" and model.has_head,
            can_embed=self.convert != "none",
            pooling=parse_pooler_config(
                self.pooler_config,
                model.sentence.pooling_type or ("MEAN" if model.is_encoder else "LAST"),
            ),
            has_text_model=model.has_head,
        )

    def _multimodal(self, model: ModelConfig, max_num_batched_tokens: int) -> MultiModalConfig:
        """An image is computed in one step: its tokens see each other."""
        asked, vision = parse_image_limit(self.limit_mm_per_prompt), model.vision
        max_images = DEFAULT_IMAGES if asked is None else asked
        if vision is None or model.implementation != "stoker" or self.runner == "pooling":
            return MultiModalConfig()
        if max_images and max_num_batched_tokens < vision.tokens_per_image:
            raise ConfigError(
                f"--max-num-batched-tokens {max_num_batched_tokens} is below the "
                f"{vision.tokens_per_image} tokens of an image, which are computed in one step; "
                f"give at least {vision.tokens_per_image}, or start with --limit-mm-per-prompt "
                "'{\"image\": 0}' for text alone."
            )
        return MultiModalConfig(max_images=max_images)

    def _lora(self, model: ModelConfig) -> LoraConfig | None:
        if not self.enable_lora:
            if self.lora_modules:
                raise ConfigError("--lora-modules needs --enable-lora; give both.")
            return None
        if self.max_cpu_loras is not None and self.max_cpu_loras < max(
            self.max_loras, len(self.lora_modules)
        ):
            raise ConfigError(
                f"--max-cpu-loras {self.max_cpu_loras} is below --max-loras {self.max_loras} or "
                f"the {len(self.lora_modules)} adapters of --lora-modules; raise it."
            )
        if model.is_encoder:
            raise ConfigError(
                f"--enable-lora works with decoders, and {model.architecture} is an encoder; leave "
                "the flag out."
            )
        named = [parse_lora_module(text) for text in self.lora_modules]
        names = [name for name, _ in named]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"--lora-modules names {twice} twice; each name is one adapter's.")
        return LoraConfig(
            max_loras=self.max_loras,
            max_lora_rank=self.max_lora_rank,
            max_cpu_loras=self.max_cpu_loras,
            modules=tuple(
                LoraRequest(name, number, absolute_folder(path))
                for number, (name, path) in enumerate(named, 1)
            ),
        )

    def _resolve_max_model_len(self, model: ModelConfig) -> int:
        limit = model.max_position_embeddings
        if self.max_model_len is None or self.max_model_len == -1:
            return limit
        if self.max_model_len > limit:
            raise ConfigError(
                f"--max-model-len {self.max_model_len} is above the {limit} positions that the "
                f"model was made for; use {limit} or less."
            )
        return self.max_model_len

    def _compilation(self, max_num_batched_tokens: int, max_num_seqs: int) -> CompilationConfig:
        asked = merged_compilation(
            self.compilation_config,
            CompilationConfig(
                enforce_eager=self.enforce_eager,
                optimization_level=self.optimization_level,
                cudagraph_capture_sizes=self.cudagraph_capture_sizes,
                max_cudagraph_capture_size=self.max_cudagraph_capture_size,
            ),
        )
        capture_sizes(
            CaptureRules(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                capture_sizes=asked.cudagraph_capture_sizes,
                max_capture_size=asked.max_cudagraph_capture_size,
            )
        )  # refuses sizes that cannot work
        return asked

    def _check_ranges(self) -> None:
        for flag, value, low, high in (
            ("--port", self.port, 0, 65535),
            ("--seed", self.seed, 0, _MOST),
            ("--max-num-seqs", self.max_num_seqs, 1, _MOST_COUNTED),
            ("--max-num-queued-reqs", self.max_num_queued_reqs, 0, _MOST),
            ("--max-num-queued-tokens", self.max_num_queued_tokens, 1, _MOST),
            ("--ttft-target-ms", self.ttft_target_ms, 1, _MOST),
            ("--data-parallel-size", self.data_parallel_size, 1, MOST_REPLICAS),
            ("--api-server-count", self.api_server_count, 1, MOST_REPLICAS),
            ("--max-num-batched-tokens", self.max_num_batched_tokens, 1, _MOST_COUNTED),
            ("--block-size", self.block_size, 1, 1024),
            ("--max-loras", self.max_loras, 1, _MOST_COUNTED),
            ("--max-lora-rank", self.max_lora_rank, 1, MOST_LORA_RANK),
            ("--max-cpu-loras", self.max_cpu_loras, 1, _MOST_COUNTED),
            ("--num-threads", self.num_threads, 1, _MOST_COUNTED),
            ("--tensor-parallel-size", self.tensor_parallel_size, 1, MOST_RANKS),
            ("--pipeline-parallel-size", self.pipeline_parallel_size, 1, MOST_RANKS),
            ("--nnodes", self.nnodes, 1, MOST_RANKS),
            ("--node-rank", self.node_rank, 0, self.nnodes - 1 if self.nnodes > 1 else MOST_RANKS),
            ("--master-port", self.master_port, 1, 65535),
            (
                *("--distributed-timeout-seconds", self.distributed_timeout_seconds),
                *(1, _LONGEST_TIMEOUT_S),
            ),
            ("--num-gpu-blocks-override", self.num_gpu_blocks_override, 2, _MOST),
            ("--kv-cache-memory-bytes", self.kv_cache_memory_bytes, 1, _MOST),
            ("--long-prefill-token-threshold", self.long_prefill_token_threshold, 0, _MOST),
            ("--optimization-level", self.optimization_level, 0, 3),
            ("--max-cudagraph-capture-size", self.max_cudagraph_capture_size, 1, _MOST),
            ("--max-logprobs", self.max_logprobs, -1, _MOST),
            ("--record-traffic-max-bytes", self.record_traffic_max_bytes, 1, _MOST),
            ("--shutdown-timeout", self.shutdown_timeout, 0, _LONGEST_TIMEOUT_S),
        ):
            _require_within(flag, value, low, high)
        if self.ttft_target_ms is not None and self.num_api_servers > 1:
            raise ConfigError(
                "--ttft-target-ms needs one API server, which sees every step; add "
                "--api-server-count 1."
            )
        if self.data_parallel_routing == "prefix" and not self.enable_prefix_caching:
            raise ConfigError(
                "--data-parallel-routing prefix needs the prefix cache, which "
                "--no-enable-prefix-caching turns off; drop one of them."
            )
        if self.enable_auto_tool_choice and self.tool_call_parser == "none":
            raise ConfigError(
                "--enable-auto-tool-choice requires --tool-call-parser; leave `none` out."
            )
        if self.max_model_len is not None and self.max_model_len != -1:
            _require_within("--max-model-len", self.max_model_len, 2, _MOST)
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ConfigError(
                f"--gpu-memory-utilization {self.gpu_memory_utilization} is not in (0, 1]."
            )


def _require_within(flag: str, value: float | None, low: float, high: float) -> None:
    if value is None or low <= value <= high:
        return
    limit = f"at least {low}" if high >= _MOST_COUNTED and value < low else f"from {low} to {high}"
    raise ConfigError(f"{flag} {value} is out of range; it must be {limit}.")


def _resolve_dtype(asked: str, model: ModelConfig, device: str) -> str:
    """`auto` is a 16-bit format where the device computes it fast; on a CPU our own kernels do."""
    if asked != "auto":
        return asked
    if model.is_encoder:
        return "float32" if device == "cpu" else model.dtype
    return cpu_dtype(model.implementation) if device == "cpu" else gpu_dtype(model.dtype)


def gpu_dtype(checkpoint_dtype: str) -> str:
    """What `--dtype auto` is on a GPU: the checkpoint's format, float16 for a float32 one."""
    return "float16" if checkpoint_dtype == "float32" else checkpoint_dtype


def cpu_dtype(implementation: str) -> str:
    """What `--dtype auto` is on this CPU: our own kernels compute bf16 fast on any."""
    return "bfloat16" if implementation == "stoker" or cpu_has_bf16() else "float32"


def _plain_type(hint: Any) -> Callable[[str], Any]:
    for kind in (int, float, str):
        if hint is kind or hint == (kind | None):
            return kind
    raise TypeError(f"no command-line type for {hint}")
