"""The lines of `vllm serve` 0.6 to 0.30 and of our own engine, which writes the same shapes.

One entry per shape; where a release changed the wording, the start or the pattern has both.
"""

from __future__ import annotations

from logparse.rules.rule import NUM, Keep, Mark, Rule, Take, Unit, rule
from logparse.rules.vllm_engine import VLLM_ENGINE_LINES
from logparse.rules.vllm_serving import VLLM_SERVING_LINES
from logparse.rules.vllm_start import VLLM_START_LINES

_FIGURE = r"(\d{1,12}(?:\.\d{1,9})?)"  # always a number
_COUNT = r"([\d,]{1,20})"
_LOGO_VERSION = (" ▄▄ ▄█", "▄▄ ▄█")  # some copies trim the first column, or join spaces
_LOGO_MODEL = ("  █▄█▀", " █▄█▀", "█▄█▀")

_VERSION = Take("engine_version", Unit.TEXT, keep=Keep.FIRST, rank=2)
_MODEL = Take("model", Unit.TEXT, keep=Keep.FIRST, rank=2)

_CONFIG_STARTS = (
    "Initializing a V1 LLM engine (v",
    "Initializing a V0 LLM engine (v",
    "Initializing an LLM engine (v",
    "Initializing an LLM engine with config: ",  # before 0.4.1
)
# (name on the engine's configuration line, pattern of its value, fact, unit)
_CONFIG_FIELDS = (
    ("max_seq_len", r"(\d{1,12})", "max_model_len", Unit.COUNT),
    ("dtype", r"(?:torch\.)?(\w{1,30})", "dtype", Unit.TEXT),
    ("quantization", r"'?([\w-]{1,60})", "quantization", Unit.TEXT),
    ("kv_cache_dtype", r"'?([\w-]{1,60})", "kv_cache_dtype", Unit.TEXT),
    ("tensor_parallel_size", r"(\d{1,6})", "tensor_parallel_size", Unit.COUNT),
    ("pipeline_parallel_size", r"(\d{1,6})", "pipeline_parallel_size", Unit.COUNT),
    ("data_parallel_size", r"(\d{1,6})", "data_parallel_size", Unit.COUNT),
    ("enforce_eager", r"(True|False)", "enforce_eager", Unit.FLAG),
    ("device_config", r"(?:DeviceConfig\(type=')?([a-z]{1,20})", "platform", Unit.TEXT),
)
# (argument, pattern of its value, fact, unit): what was asked for, not what was settled on.
_ARGUMENTS = (
    ("max_model_len", r"(\d{1,12})\b", "requested_max_model_len", Unit.COUNT),
    ("port", r"(\d{1,5})\b", "requested_port", Unit.COUNT),
    ("block_size", r"(\d{1,9})\b", "block_size", Unit.COUNT),
    ("gpu_memory_utilization", r"([\d.]{1,12})\b", "gpu_memory_utilization", Unit.NUMBER),
    ("model", r"'([^']{1,400})'", "model", Unit.TEXT),
)


def _config_rules() -> tuple[Rule, ...]:
    return tuple(
        rule(
            f"config-{name.replace('_', '-')}",
            _CONFIG_STARTS,
            rf"{name}=(?<=[ ,(]{name}=){value}",
            f"{name} as resolved, from the engine's configuration line.",
            is_anywhere=True,
            takes=(Take(fact, unit, keep=Keep.FIRST, rank=2),),
            about=2,
            source="v1/engine/core.py",
        )
        for name, value, fact, unit in _CONFIG_FIELDS
    )


def _argument_rules() -> tuple[Rule, ...]:
    return tuple(
        rule(
            f"argument-{name.replace('_', '-')}",
            ("non-default args: {", "args: Namespace("),
            rf"{name}(?<!\w{name})'?(?:: |=){value}",
            f"--{name.replace('_', '-')} as the user gave it.",
            is_anywhere=True,
            takes=(Take(fact, unit, keep=Keep.FIRST, rank=0),),
            about=1,
            source="serve/utils/api_utils.py",
        )
        for name, value, fact, unit in _ARGUMENTS
    )


# Whatever the configuration line says.
_ROCM = Take("platform", Unit.TEXT, (0,), Keep.FIRST, 3, constant="rocm")

_CONFIGURATION = (
    rule(
        "server-version",
        ("vLLM API server version ", "vLLM server version "),
        r"([^\s,]{1,80})(?:, serving model (\S{1,400}))?",
        "The server's version; since 0.30 with the model, when the logo is switched off.",
        takes=(_VERSION, Take("model", Unit.TEXT, (2,), Keep.FIRST, 2)),
        phase=1,
        mark=Mark.VERSION,
        source="serve/utils/api_utils.py",
    ),
    rule(
        "stoker-version",
        "Stoker server version ",
        r"([^\s,]{1,80})(?:, serving model (\S{1,400}))?",
        "Our own engine's version and model.",
        engine="stoker",
        takes=(_VERSION, Take("model", Unit.TEXT, (2,), Keep.FIRST, 2)),
        phase=1,
        mark=Mark.VERSION,
        source="engine/server/launch.py",
    ),
    rule(
        "logo-version",
        _LOGO_VERSION,
        r"[ ▀▄█]{4,60} version (\S{1,80})",
        "The logo's line with the version.",
        takes=(_VERSION,),
        phase=1,
        mark=Mark.VERSION,
        source="serve/utils/api_utils.py",
        versions="0.16 and newer",
    ),
    rule(
        "logo-model",
        _LOGO_MODEL,
        r"[ ▀▄█]{4,60} model {1,4}(\S{1,400})",
        "The logo's line with the model.",
        takes=(_MODEL,),
        phase=1,
        source="serve/utils/api_utils.py",
        versions="0.16 and newer",
    ),
    rule(
        "platform-rocm",
        "Using ",
        r"[^\n]{0,120}?\b(?:ROCm|AITER|aiter|RCCL|rccl)\b",
        "AMD's libraries are used; the configuration line calls their devices cuda.",
        clues=("ROCm", "AITER", "aiter", "RCCL", "rccl"),
        engine="",
        takes=(_ROCM,),
        source="platforms/rocm.py",
    ),
    rule(
        "platform-aiter",
        ("[aiter] ", "RCCL version "),
        r"",
        "AMD's kernels, built when they are first used; the processes wait for each other there.",
        engine="",
        takes=(_ROCM,),
        about=2,
        source="aiter",
    ),
    rule(
        "platform",
        "Automatically detected platform ",
        r"(\w{1,20})\.",
        "The kind of device (up to 0.10; each process prints it).",
        takes=(Take("platform", Unit.TEXT, keep=Keep.FIRST),),
        mark=Mark.BEGINS,
        source="platforms/__init__.py",
        versions="up to 0.9",
    ),
    rule(
        "no-platform",
        "No platform detected, vLLM is running on ",
        r"(\w{1,40})",
        "No device that this build can use was found.",
        takes=(Take("platform", Unit.TEXT, keep=Keep.FIRST),),
        mark=Mark.BEGINS,
        source="platforms/__init__.py",
        versions="up to 0.9",
    ),
    rule(
        "platform-plugin",
        "Platform plugin ",
        r"(\w{1,40}) is activated",
        "An out-of-tree device plugin.",
        takes=(Take("platform", Unit.TEXT, keep=Keep.FIRST),),
        mark=Mark.BEGINS,
        source="platforms/__init__.py",
    ),
    rule(
        "non-default-args",
        "non-default args: ",
        r"(\{.{0,20000})",
        "The flags that the user gave.",
        takes=(Take("non_default_args", Unit.TEXT, keep=Keep.FIRST),),
        phase=1,
        mark=Mark.BEGINS,
        source="serve/utils/api_utils.py",
        versions="0.9 and newer",
    ),
    rule(
        "args-namespace",
        "args: ",
        r"(Namespace\(.{0,20000})",
        "All flags (up to 0.9).",
        takes=(Take("non_default_args", Unit.TEXT, keep=Keep.FIRST, rank=0),),
        phase=1,
        mark=Mark.BEGINS,
        source="entrypoints/openai/api_server.py",
        versions="up to 0.9",
    ),
    rule(
        "architecture",
        "Resolved architecture: ",
        r"(\w{1,120})",
        "The model class, from config.json.",
        takes=(Take("architecture", Unit.TEXT, keep=Keep.FIRST),),
        phase=1,
        source="config/model.py",
        versions="0.10 and newer",
    ),
    rule(
        "tasks-of-model",
        "This model supports multiple tasks: ",
        r"",
        "Printed before 0.10 instead of the architecture.",
        phase=1,
        source="config.py",
        versions="0.7 to 0.9",
    ),
    rule(
        "max-model-len",
        "Using max model len ",
        r"(\d{1,12})",
        "The longest sequence. A draft model prints its own, later.",
        takes=(Take("max_model_len", Unit.COUNT, keep=Keep.FIRST),),
        phase=1,
        source="config/model.py",
        versions="0.10 and newer",
    ),
    rule(
        "chunked-prefill",
        "Chunked prefill is enabled with max_num_batched_tokens=",
        r"(\d{1,12})",
        "The token budget of one step.",
        takes=(Take("max_num_batched_tokens", Unit.COUNT, keep=Keep.FIRST),),
        phase=1,
        source="config/scheduler.py",
    ),
    rule(
        "eager",
        "Enforce eager set",
        r"",
        "No compilation and no graphs will follow.",
        phase=1,
        source="config/vllm.py",
    ),
)

_ENGINE_AND_WEIGHTS = (
    rule(
        "engine-config",
        _CONFIG_STARTS,
        r"(?:([^)'=]{1,80})\) with config: )?(?:model='([^']{1,400})')?",
        "The engine process starts, with the resolved configuration on one long line.",
        takes=(
            Take("engine_version", Unit.TEXT, keep=Keep.FIRST),
            Take("model", Unit.TEXT, (2,), Keep.FIRST),
        ),
        phase=2,
        source="v1/engine/core.py",
    ),
    rule(
        "attention-backend",
        "Using ",
        r"([A-Z][A-Z0-9_]{2,60}) attention backend out of potential backends",
        "The attention implementation, chosen from those that fit.",
        clues=(" attention backend out of ",),
        takes=(Take("attention_backend", Unit.TEXT, keep=Keep.FIRST, rank=2),),
        phase=2,
        source="platforms/cuda.py",
        versions="0.11 and newer",
    ),
    rule(
        "attention-backend-named",
        "Using ",
        r"(Flash Attention|FlashInfer|XFormers|Torch SDPA|Triton|[A-Z][A-Z0-9_]{4,60}) backend(?: "
        r"on V\d engine)?\.",
        "The attention implementation (user's choice, or before 0.11).",
        clues=(" backend",),
        takes=(Take("attention_backend", Unit.TEXT, keep=Keep.FIRST),),
        phase=2,
        source="platforms/cuda.py",
    ),
    rule(
        "load-start",
        ("Starting to load model ", "Loading model from scratch..."),
        r"",
        "A worker begins to load the weights.",
        phase=2,
        source="v1/worker/gpu_model_runner.py",
    ),
    rule(
        "load-weights",
        "Loading weights took ",
        NUM + r" seconds",
        "Reading the files and copying them to the device.",
        takes=(Take("load_weights_s", Unit.SECONDS),),
        phase=2,
        ends_phase=True,
        source="model_loader/default_loader.py",
        versions="0.8 and newer",
    ),
    rule(
        "weights",
        "Model loading took ",
        NUM + r" Gi?B(?: memory)?(?: and " + NUM + r" seconds)?",
        "What the weights of this rank occupy.",
        takes=(Take("weights_gib", Unit.GIB), Take("model_load_s", Unit.SECONDS, (2,))),
        phase=2,
        ends_phase=True,
        source="v1/worker/gpu_model_runner.py",
        versions="0.8 and newer",
    ),
    rule(
        "weights-hpu",
        "Pre-loading model weights on ",
        r"\S{1,20} took " + NUM + r" Gi?B of device memory",
        "Memory of the weights on one Gaudi card.",
        takes=(Take("weights_gib", Unit.GIB),),
        phase=2,
        ends_phase=True,
        source="worker/hpu_model_runner.py",
    ),
    rule(
        "weights-hpu-small",
        ("Pre-loading model weights on ", "Loading model weights took in total "),
        r"(?:\S{1,20} took )?" + NUM + r" MiB of device memory",
        "The same of a small model, or of a draft model.",
        takes=(Take("weights_gib", Unit.MIB),),
        phase=2,
        ends_phase=True,
        source="worker/hpu_model_runner.py",
    ),
    rule(
        "weights-old",
        "Loading model weights took ",
        r"(?:in total )?" + NUM + r" Gi?B(?: and " + NUM + r" seconds)?",
        "As Model loading took; up to 0.8 it said GB and meant GiB. Gaudi says in total.",
        takes=(Take("weights_gib", Unit.GIB), Take("model_load_s", Unit.SECONDS, (2,))),
        phase=2,
        ends_phase=True,
        source="worker/model_runner.py",
        versions="up to 0.8",
    ),
)

_COMPILATION = (
    rule(
        "compile-cache-dir",
        "Using cache directory: ",
        r".{1,1000} for vLLM's torch.compile",
        "Where compiled graphs are kept.",
        phase=3,
        source="compilation/backends.py",
    ),
    rule(
        "dynamo",
        "Dynamo bytecode transform time: ",
        NUM + r" s",
        "Tracing, the first step of torch.compile.",
        takes=(Take("dynamo_s", Unit.SECONDS),),
        phase=3,
        source="compilation/backends.py",
    ),
    rule(
        "compile-range",
        "Compiling a graph for ",
        r"(?:compile range|dynamic shape|general shape|shape)",
        "One graph compiled; the next start finds it in the cache.",
        phase=3,
        source="compilation/backends.py",
    ),
    rule(
        "compile-cached",
        ("Directly load the compiled graph", "Directly load AOT compilation from path"),
        r"",
        "A graph taken from the cache.",
        phase=3,
        source="compilation/backends.py",
        feeds=True,
    ),
    rule(
        "compile",
        ("torch.compile took ", "torch.compile takes "),
        NUM + r" s in total",
        "The whole of torch.compile on this rank.",
        takes=(Take("compile_s", Unit.SECONDS),),
        phase=3,
        ends_phase=True,
        source="compilation/monitor.py",
    ),
    rule(
        "first-run",
        "Initial profiling/warmup run took ",
        NUM + r" s",
        "The first forward pass after compiling.",
        takes=(Take("warmup_run_s", Unit.SECONDS),),
        phase=3,
        ends_phase=True,
        source="compilation/monitor.py",
        versions="0.20 and newer",
    ),
    rule(
        "cpu-warmup",
        "Warming up model for the compilation...",
        r"",
        "The CPU backend compiles here and prints no total.",
        phase=3,
        source="v1/worker/cpu_model_runner.py",
    ),
    rule(
        "cpu-warmup-done",
        "Warming up done.",
        r"",
        "CPU compilation is over.",
        phase=3,
        ends_phase=True,
        source="v1/worker/cpu_model_runner.py",
    ),
)

_MEMORY_AND_GRAPHS = (
    rule(
        "profiling-v0",
        "Memory profiling takes ",
        NUM + r" seconds",
        "The V0 engine measured the peak of activations.",
        phase=4,
        source="worker/worker.py",
        versions="0.6 to 0.9 (V0)",
    ),
    rule(
        "kv-memory-hpu",
        "Free device memory: ",
        r"[^,]{1,40}, .{0,300}? " + NUM + r" GiB reserved for KV cache",
        "The Gaudi worker's share for the KV cache.",
        takes=(Take("kv_memory_gib", Unit.GIB),),
        phase=4,
        source="worker/hpu_worker.py",
    ),
    rule(
        "kv-memory-v0",
        "model weights take ",
        r"[^;]{1,40};[^;]{1,80};[^;]{1,80}; the rest of the memory reserved for KV Cache is "
        + NUM
        + "GiB",
        "The V0 engine's share for the KV cache.",
        takes=(Take("kv_memory_gib", Unit.GIB),),
        phase=4,
        source="worker/worker.py",
        versions="0.6 to 0.9 (V0)",
    ),
    rule(
        "graph-estimate",
        "Estimated CUDA graph memory: ",
        NUM,
        "Set aside before the cache.",
        phase=4,
        source="v1/worker/gpu_model_runner.py",
        versions="0.19 and newer",
    ),
    rule(
        "kv-memory",
        "Available KV cache memory: ",
        NUM + " GiB",
        "What is left for the KV cache on this rank.",
        takes=(Take("kv_memory_gib", Unit.GIB),),
        phase=4,
        source="v1/worker/gpu_worker.py",
    ),
    rule(
        "kv-memory-fixed",
        "Initial free memory ",
        NUM + r" GiB, reserved " + NUM + r" GiB memory for KV Cache as specified by",
        "The size that --kv-cache-memory-bytes asked for.",
        takes=(Take("kv_memory_gib", Unit.GIB, (2,)),),
        phase=4,
        source="v1/worker/gpu_worker.py",
        versions="0.10 and newer",
    ),
    rule(
        "kv-memory-cpu",
        ("Auto set (", "Explicitly set ("),
        NUM + r"/[\d.]{1,20}\) GiB for KV cache",
        "The CPU backend's KV cache, of the memory of that node.",
        takes=(Take("kv_memory_gib", Unit.GIB),),
        phase=4,
        source="v1/worker/cpu_worker.py",
    ),
    rule(
        "kv-tokens",
        (
            "GPU KV cache size: ",
            "CPU KV cache size: ",
            "XPU KV cache size: ",
            "TPU KV cache size: ",
        ),
        _COUNT
        + r" tokens(?:, Maximum concurrency for "
        + _COUNT
        + r" tokens per request: "
        + NUM
        + "x)?",
        "Token slots of the KV cache, and how many full-length requests they hold.",
        takes=(
            Take("kv_tokens", Unit.COUNT),
            Take("max_model_len", Unit.COUNT, (2,), Keep.LAST, 0),
            Take("max_concurrency", Unit.NUMBER, (3,)),
        ),
        phase=4,
        source="v1/core/kv_cache_utils.py",
        versions="0.8 and newer",
    ),
    rule(
        "concurrency",
        "Maximum concurrency for ",
        _COUNT + r" tokens per request: " + NUM + "x",
        "How many full-length requests fit (a line of its own until 0.28).",
        takes=(
            Take("max_model_len", Unit.COUNT, (1,), Keep.LAST, 0),
            Take("max_concurrency", Unit.NUMBER, (2,)),
        ),
        phase=4,
        source="v1/core/kv_cache_utils.py",
        versions="up to 0.28",
    ),
    rule(
        "kv-blocks",
        "# ",
        r"[A-Za-z]{2,12} blocks: (\d{1,12})",
        "KV blocks; their size is 16 tokens unless --block-size says otherwise.",
        takes=(Take("kv_blocks", Unit.COUNT, keep=Keep.LAST),),
        phase=4,
        source="executor/executor_base.py",
        versions="up to 0.9",
    ),
    rule(
        "max-model-len-fitted",
        "Auto-fit max_model_len: reduced from ",
        r"\d{1,12} to (\d{1,12})",
        "--max-model-len auto found the length that fits.",
        takes=(Take("max_model_len", Unit.COUNT, (1,), Keep.LAST, 3),),
        phase=4,
        source="v1/core/kv_cache_utils.py",
        versions="0.12 and newer",
    ),
    rule(
        "graphs-v0",
        ("Capturing cudagraphs for decoding.", "Capturing the model for CUDA graphs."),
        r"",
        "The V0 engine begins to capture graphs.",
        phase=4,
        source="worker/model_runner.py",
        versions="up to 0.9 (V0)",
    ),
    rule(
        "graphs",
        "Graph capturing finished in ",
        NUM + r" secs(?:, took " + NUM + " GiB)?",
        "CUDA graphs: time and memory. The V2 runner prints an estimate first.",
        takes=(
            Take("graph_capture_s", Unit.SECONDS, (1,), Keep.LAST_PER_PROCESS),
            Take("graph_gib", Unit.GIB, (2,), Keep.LAST_PER_PROCESS),
        ),
        phase=4,
        source="v1/worker/gpu_model_runner.py",
    ),
    rule(
        "engine-init",
        "init engine (profile, create kv cache, warmup model) took ",
        NUM + r" s",
        "Profiling, cache and warm-up together; the engine is up, the server is not yet.",
        takes=(Take("engine_init_s", Unit.SECONDS, keep=Keep.LAST),),
        phase=4,
        ends_phase=True,
        source="v1/engine/core.py",
    ),
)

_SERVING = (
    rule(
        "tasks",
        ("Supported tasks: ", "Supported_tasks: "),
        r"[\[(](.{0,300})[\])]",
        "What the model can be asked for.",
        takes=(Take("supported_tasks", Unit.TEXT, keep=Keep.LAST),),
        phase=5,
        source="launchers/api_server/entry.py",
        versions="0.10 and newer",
    ),
    rule(
        "listening",
        ("Starting vLLM server on ", "Starting vLLM API server on "),
        r"(\S{1,300})",
        "The address. Requests are answered a moment later.",
        takes=(Take("server_url", Unit.TEXT, keep=Keep.LAST, rank=2),),
        phase=5,
        mark=Mark.LISTENING,
        source="launchers/api_server/entry.py",
    ),
    rule(
        "listening-numbered",
        "Starting vLLM API server ",
        r"\d{1,4} on (\S{1,300})",
        "The address, with the number of the API server (0.9 to 0.2x).",
        takes=(Take("server_url", Unit.TEXT, keep=Keep.LAST, rank=2),),
        phase=5,
        mark=Mark.LISTENING,
        source="entrypoints/openai/api_server.py",
        versions="0.9 to 0.2x",
    ),
    rule(
        "stoker-listening",
        "Starting Stoker server on ",
        r"(\S{1,300})",
        "Our own engine's address.",
        engine="stoker",
        takes=(Take("server_url", Unit.TEXT, keep=Keep.LAST, rank=2),),
        phase=5,
        mark=Mark.LISTENING,
        source="engine/server/launch.py",
    ),
    rule(
        "routes",
        ("Available routes are:", "Route: "),
        r"",
        "The HTTP routes.",
        phase=5,
        mark=Mark.ROUTES,
        source="launchers/launcher.py",
    ),
)

# uvicorn's own lines; SGLang and vLLM both have them, so they count for no engine.
_UVICORN = (
    rule(
        "application-ready",
        "Application startup complete.",
        r"",
        "Ready: requests are answered from here on (SGLang warms up first).",
        engine="",
        phase=5,
        mark=Mark.HTTP,
        source="uvicorn",
    ),
    rule(
        "uvicorn-address",
        "Uvicorn running on ",
        r"(\w{2,8}://\S{1,300})",
        "The address (may be missing).",
        engine="",
        takes=(Take("server_url", Unit.TEXT, keep=Keep.LAST),),
        phase=5,
        source="uvicorn",
    ),
    rule(
        "uvicorn-socket",
        "Uvicorn running on socket ",
        r"\('?[^)]{1,100}\)",
        "The address, when the socket was opened before.",
        engine="",
        phase=5,
        source="uvicorn",
    ),
    rule(
        "offline-output",
        ("Prompt: ", "Generated text: "),
        r"(?:.{0,4000}?Generated text: )?",
        "What vLLM's example scripts print: an engine without a server answered.",
        engine="",
        phase=5,
        mark=Mark.OFFLINE,
        source="examples/offline_inference/basic",
    ),
    rule(
        "application-stopped",
        ("Application shutdown complete.", "Finished server process"),
        r"",
        "The HTTP server has stopped.",
        engine="",
        mark=Mark.STOPPED,
        source="uvicorn",
    ),
)

_RUNTIME = (
    rule(
        "throughput",
        ("Engine ", "Avg prompt throughput: "),
        r"(?:\d{1,6}: Avg prompt throughput: )?"
        + _FIGURE
        + r" tokens/s, Avg generation throughput: "
        + _FIGURE
        + r" tokens/s, Running: (\d{1,9}) reqs, (?:Swapped: \d{1,9} reqs, )?(?:Waiting|Pending): "
        r"(\d{1,9}) reqs[^%]{0,200}?KV cache usage: " + _FIGURE + "%",
        "The periodic line. Silence after it means idle, not dead.",
        takes=(
            Take("prompt_tokens_per_s", Unit.NUMBER, (1,), Keep.LAST),
            Take("generation_tokens_per_s", Unit.NUMBER, (2,), Keep.LAST),
            Take("num_running", Unit.COUNT, (3,), Keep.LAST),
            Take("num_waiting", Unit.COUNT, (4,), Keep.LAST),
            Take("kv_usage_percent", Unit.NUMBER, (5,), Keep.LAST),
        ),
        mark=Mark.SERVING,
        source="v1/metrics/loggers.py",
        feeds=True,
    ),
    rule(
        "shutdown",
        ("[shutdown] API server:", "Shutting down FastAPI HTTP server"),
        r"",
        "The server was asked to stop.",
        mark=Mark.STOPPING,
        source="launchers/launcher.py",
    ),
    rule(
        "engine-fatal",
        "EngineCore encountered a fatal error.",
        r"",
        "The engine cannot go on.",
        mark=Mark.DIED,
        source="v1/engine/core.py",
    ),
    rule(
        "engine-died",
        "Engine core proc ",
        r".{1,80} died unexpectedly",
        "The engine process is gone.",
        mark=Mark.DIED,
        source="v1/engine/core_client.py",
    ),
    rule(
        "engine-exited",
        "[shutdown] MPClient: engine core exited unexpectedly",
        r"",
        "The engine process is gone.",
        mark=Mark.DIED,
        source="v1/engine/core_client.py",
    ),
    rule(
        "engine-dead-v0",
        (
            "MQLLMEngine is already dead",
            "AsyncLLMEngine is already dead",
            "AsyncLLM is already dead",
            "AsyncLLM got fatal signal from worker process",
            "Got fatal signal from worker process",
        ),
        r"",
        "The engine is gone, and the server ends.",
        mark=Mark.DIED,
        source="entrypoints/launcher.py",
        versions="0.6 to 0.8",
    ),
    rule(
        "worker-died",
        "Worker proc ",
        r".{1,80} died unexpectedly",
        "A worker process is gone, and the engine with it.",
        mark=Mark.DIED,
        source="v1/executor/multiproc_executor.py",
    ),
)

VLLM_RULES: tuple[Rule, ...] = (
    *_CONFIGURATION,
    *_argument_rules(),
    *_config_rules(),
    *_ENGINE_AND_WEIGHTS,
    *_COMPILATION,
    *_MEMORY_AND_GRAPHS,
    *_SERVING,
    *_UVICORN,
    *_RUNTIME,
    *VLLM_START_LINES,
    *VLLM_ENGINE_LINES,
    *VLLM_SERVING_LINES,
)
