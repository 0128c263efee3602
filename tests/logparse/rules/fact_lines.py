"""A line for each rule that takes facts, with the facts it must give."""

from __future__ import annotations

from typing import Any

V1 = "Initializing a V1 LLM engine (v0.12.0) with config: model='o/m', dtype=torch.bfloat16, "
ENGINE = (
    V1
    + "max_seq_len=4096, tensor_parallel_size=2, pipeline_parallel_size=3, data_parallel_size=4, "
    "quantization=awq, enforce_eager=True, kv_cache_dtype=fp8, device_config=cuda, x"
)
THROUGHPUT = "tokens/s, Avg generation throughput: 2.5 tokens/s, Running: 3 reqs, "
ARGS = "non-default args: {'model_tag': 'o/m', 'model': 'o/m', 'port': 81, 'max_model_len': 99}"

# (ids of the rules that must match, message, facts it must give)
CASES: list[tuple[str, str, dict[str, Any]]] = [
    (
        "engine-config config-max-seq-len",  # before 0.4.1, without a version
        "Initializing an LLM engine with config: model='o/m', tokenizer='o/m', max_seq_len=2048, x",
        {"model": "o/m", "max_model_len": 2048, "engine_version": None},
    ),
    (
        "weights-old",
        "Loading model weights took in total 12.5 GiB of device memory (12.5 GiB/94.6 GiB used)",
        {"weights_gib": 12.5},
    ),
    (
        "kv-memory-hpu",
        "Free device memory: 79.5 GiB, 39.8 GiB usable (gpu_memory_utilization=0.5), 15.9 GiB "
        "reserved for HPUGraphs (VLLM_GRAPH_RESERVED_MEM=0.4), 23.9 GiB reserved for KV cache",
        {"kv_memory_gib": 23.9},
    ),
    ("kv-blocks", "# HPU blocks: 77, # CPU blocks: 5", {"kv_blocks": 77}),
    (
        "memory-profile-oldest",
        "Memory profiling results: duration=7.5 seconds, total_gpu_memory=79.1GiB, "
        "initial_memory_usage=2.5GiB, kv_cache_size=30.5GiB, gpu_memory_utilization=0.90.",
        {"kv_memory_gib": 30.5},
    ),
    (
        "sglang-weights",  # before the time was printed
        "Load weight end. type=FooForCausalLM, dtype=torch.bfloat16, avail mem=20.5 GB, mem "
        "usage=10.5 GB.",
        {"weights_gib": 10.5, "model_load_s": None},
    ),
    (
        "sglang-kv",
        "KV Cache is allocated. dtype: bfloat16, #tokens: 800, K size: 1.5 GB, V size: 1.5 GB",
        {"kv_tokens": 800, "kv_memory_gib": 3.0},
    ),
    (
        "sglang-kv",
        "KV Cache is allocated. K size: 2.5 GB, V size: 2.5 GB.",
        {"kv_tokens": None, "kv_memory_gib": 5.0},
    ),
    (
        "sglang-kv-latent",
        "KV Cache is allocated. #tokens: 900, KV size: 7.5 GB",
        {"kv_tokens": 900, "kv_memory_gib": 7.5},
    ),
    (
        "sglang-graphs",
        "Capture cuda graph end. Time elapsed: 9.5 s. avail mem=18.5 GB. mem usage=3.5 GB.",
        {"graph_capture_s": 9.5, "graph_gib": 3.5},
    ),
    (
        "llama-weights",
        "llm_load_tensors:      CUDA0 buffer size =  2048.00 MiB",
        {"weights_gib": 2.0},
    ),
    (
        "llama-kv-old",
        "llama_init_from_model: KV self size  =  512.00 MiB, K (f16):  256.00 MiB, V",
        {"kv_memory_gib": 0.5},
    ),
    (
        "llama-kv-cells",
        "llama_kv_cache_init: kv_size = 4096, offload = 1, type_k = 'f16'",
        {"kv_tokens": 4096},
    ),
    ("llama-build-info", "build_info: b9100-1a2b3c4d5", {"engine_version": "b9100"}),
    (
        "logo-version",  # as a web page shows it
        "▄▄ ▄█ █ █ █ ▀▄▀ █ version 0.19.0",
        {"engine_version": "0.19.0"},
    ),
    ("logo-model", "█▄█▀ █ █ █ █ model o/m", {"model": "o/m"}),
    (
        "llama-build-old",
        'INFO [                    main] build info | tid="1" timestamp=17 build=3351 commit="a5"',
        {"engine_version": "b3351"},
    ),
    (
        "llama-listening-old",
        "llama server listening at http://127.0.0.1:81",
        {"server_url": "http://127.0.0.1:81"},
    ),
    ("server-version", "vLLM API server version 0.8.4", {"engine_version": "0.8.4"}),
    ("server-version", "vLLM server version 0.30.0, serving model o/m", {"model": "o/m"}),
    ("stoker-version", "Stoker server version 0.1, serving model m", {"engine_version": "0.1"}),
    (
        "logo-version",
        " ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.26.1rc1.dev1+g2",
        {"engine_version": "0.26.1rc1.dev1+g2"},
    ),
    ("logo-model", "  █▄█▀ █     █     █     █  model   o/m", {"model": "o/m"}),
    ("platform", "Automatically detected platform cuda.", {"platform": "cuda"}),
    (
        "no-platform",
        "No platform detected, vLLM is running on UnspecifiedPlatform",
        {"platform": "UnspecifiedPlatform"},
    ),
    ("platform-plugin", "Platform plugin ascend is activated", {"platform": "ascend"}),
    (
        "non-default-args argument-port argument-model argument-max-model-len",
        ARGS,
        {"requested_port": 81, "requested_max_model_len": 99},
    ),
    (
        "args-namespace argument-port",
        "args: Namespace(model='o/m', port=82, api_key='sk-123456789')",
        {"requested_port": 82, "non_default_args": "Namespace(model='o/m', port=82, api_key=***)"},
    ),
    (
        "architecture",
        "Resolved architecture: Qwen3ForCausalLM",
        {"architecture": "Qwen3ForCausalLM"},
    ),
    (
        "tasks-of-model",
        "This model supports multiple tasks: {'embed'}. Defaulting to 'generate'.",
        {},
    ),
    ("max-model-len", "Using max model len 40960", {"max_model_len": 40960}),
    (
        "chunked-prefill",
        "Chunked prefill is enabled with max_num_batched_tokens=8192.",
        {"max_num_batched_tokens": 8192},
    ),
    ("eager", "Enforce eager set, disabling torch.compile and CUDAGraphs.", {}),
    (
        "engine-config config-dtype config-max-seq-len config-tensor-parallel-size "
        "config-pipeline-parallel-size "
        "config-data-parallel-size config-quantization config-enforce-eager config-kv-cache-dtype "
        "config-device-config",
        ENGINE,
        {
            "engine_version": "0.12.0",
            "model": "o/m",
            "dtype": "bfloat16",
            "max_model_len": 4096,
            "tensor_parallel_size": 2,
            "pipeline_parallel_size": 3,
            "data_parallel_size": 4,
            "quantization": "awq",
            "enforce_eager": True,
            "kv_cache_dtype": "fp8",
            "platform": "cuda",
        },
    ),
    (
        "engine-config",
        "Initializing an LLM engine (v0.6.6) with config: model='o/m', ",
        {"engine_version": "0.6.6"},
    ),
    (
        "attention-backend",
        "Using FLASHINFER attention backend out of potential backends: ['FLASHINFER'].",
        {"attention_backend": "FLASHINFER"},
    ),
    (
        "attention-backend-named",
        "Using Flash Attention backend on V1 engine.",
        {"attention_backend": "Flash Attention"},
    ),
    ("load-start", "Starting to load model o/m...", {}),
    ("load-weights", "Loading weights took 5.31 seconds", {"load_weights_s": 5.31}),
    (
        "weights",
        "Model loading took 15.3 GiB memory and 6.9 seconds",
        {"weights_gib": 15.3, "model_load_s": 6.9},
    ),
    ("weights-old", "Loading model weights took 2.8875 GB", {"weights_gib": 2.8875}),
    ("compile-cache-dir", "Using cache directory: /x/y for vLLM's torch.compile", {}),
    ("dynamo", "Dynamo bytecode transform time: 6.41 s", {"dynamo_s": 6.41}),
    ("compile-range", "Compiling a graph for dynamic shape takes 17.38 s", {}),
    (
        "compile-cached",
        "Directly load the compiled graph(s) for compile range (1, 2048) from the cache",
        {},
    ),
    ("compile", "torch.compile takes 13.99 s in total", {"compile_s": 13.99}),
    ("compile", "torch.compile took 24.61 s in total", {"compile_s": 24.61}),
    ("first-run", "Initial profiling/warmup run took 1.08 s", {"warmup_run_s": 1.08}),
    ("cpu-warmup", "Warming up model for the compilation...", {}),
    ("cpu-warmup-done", "Warming up done.", {}),
    ("profiling-v0", "Memory profiling takes 1.05 seconds", {}),
    (
        "kv-memory-v0",
        "model weights take 2.89GiB; non_torch_memory takes 0.23GiB; PyTorch activation peak "
        "memory takes "
        "1.40GiB; the rest of the memory reserved for KV Cache is 35.55GiB.",
        {"kv_memory_gib": 35.55},
    ),
    ("graph-estimate", "Estimated CUDA graph memory: 2.55 GiB total", {}),
    ("kv-memory", "Available KV cache memory: -0.41 GiB", {"kv_memory_gib": -0.41}),
    (
        "kv-memory-fixed",
        "Initial free memory 20.0 GiB, reserved 4.0 GiB memory for KV Cache as specified by x",
        {"kv_memory_gib": 4.0},
    ),
    (
        "kv-memory-cpu",
        "Auto set (1.48/18.0) GiB for KV cache on node 0, with x",
        {"kv_memory_gib": 1.48},
    ),
    (
        "kv-memory-cpu",
        "Explicitly set (2.0/19.21) GiB for KV cache on node 0.",
        {"kv_memory_gib": 2.0},
    ),
    (
        "kv-tokens",
        "CPU KV cache size: 93,184 tokens, Maximum concurrency for 4,096 tokens per "
        "request: 22.75x",
        {"kv_tokens": 93184, "max_model_len": 4096, "max_concurrency": 22.75},
    ),
    (
        "kv-tokens",
        "GPU KV cache size: 12,928 tokens",
        {"kv_tokens": 12928, "max_concurrency": None},
    ),
    (
        "concurrency",
        "Maximum concurrency for 8,192 tokens per request: 1.58x",
        {"max_concurrency": 1.58},
    ),
    ("kv-blocks", "# cpu blocks: 9362, # CPU blocks: 0", {"kv_blocks": 9362}),
    (
        "max-model-len-fitted",
        "Auto-fit max_model_len: reduced from 8192 to 4096 to fit in available memory",
        {"max_model_len": 4096},
    ),
    ("graphs-v0", "Capturing cudagraphs for decoding. This may lead to", {}),
    (
        "graphs",
        "Graph capturing finished in 5 secs, took 0.61 GiB",
        {"graph_gib": 0.61, "graph_capture_s": 5},
    ),
    ("graphs", "Graph capturing finished in 31 secs.", {"graph_capture_s": 31, "graph_gib": None}),
    (
        "engine-init",
        "init engine (profile, create kv cache, warmup model) took 12.29 seconds",
        {"engine_init_s": 12.29},
    ),
    ("tasks", "Supported_tasks: ['generate']", {"supported_tasks": "'generate'"}),
    (
        "listening",
        "Starting vLLM API server on http://[::]:8000",
        {"server_url": "http://[::]:8000"},
    ),
    (
        "listening-numbered",
        "Starting vLLM API server 0 on http://h:1",
        {"server_url": "http://h:1"},
    ),
    ("stoker-listening", "Starting Stoker server on http://h:2", {"server_url": "http://h:2"}),
    ("routes", "Route: /health, Methods: GET", {}),
    ("application-ready", "Application startup complete.", {}),
    (
        "uvicorn-address",
        "Uvicorn running on http://h:3 (Press CTRL+C to quit)",
        {"server_url": "http://h:3"},
    ),
    ("application-stopped", "Application shutdown complete.", {}),
    (
        "throughput",
        f"Engine 000: Avg prompt throughput: 1.5 {THROUGHPUT}Waiting: 4 reqs, GPU KV cache "
        f"usage: 5.5%, x",
        {
            "prompt_tokens_per_s": 1.5,
            "generation_tokens_per_s": 2.5,
            "num_running": 3,
            "num_waiting": 4,
            "kv_usage_percent": 5.5,
        },
    ),
    (
        "throughput",
        f"Avg prompt throughput: 1.5 {THROUGHPUT}Swapped: 0 reqs, Pending: 4 reqs, GPU KV cache "
        f"usage: 5.5%, CPU",
        {"num_waiting": 4, "kv_usage_percent": 5.5},
    ),
    ("shutdown", "[shutdown] API server: shutdown triggered", {}),
    ("engine-fatal", "EngineCore encountered a fatal error.", {}),
    ("engine-died", "Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.", {}),
    ("engine-exited", "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup", {}),
    (
        "worker-died",
        "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down",
        {},
    ),
    ("llama-build", "build: 7780 (7dee9ff59) with GNU 13.3.0", {"engine_version": "b7780"}),
    ("llama-begin", "srv  llama_server: initializing ...", {}),
    ("llama-load", "srv    load_model: loading model '/m/x.gguf'", {"model": "/m/x.gguf"}),
    (
        "llama-weights",
        "load_tensors:        CUDA0 model buffer size =  7165.44 MiB",
        {"weights_gib": 6.9975},
    ),
    ("llama-context", "llama_context: n_ctx         = 32768", {"max_model_len": 32768}),
    (
        "llama-kv",
        "llama_kv_cache: size = 1792.00 MiB ( 32768 cells,  28 layers",
        {"kv_memory_gib": 1.75, "kv_tokens": 32768},
    ),
    ("llama-slots", "srv    load_model: initializing slots, n_slots = 3", {"num_slots": 3}),
    (
        "llama-slots",
        "srv    load_model: initializing, n_slots = 6, n_ctx_slot = 640, kv_unified = 'false'",
        {"num_slots": 6, "slot_tokens": 640, "max_model_len": None},
    ),
    (
        "llama-slot",
        "slot   load_model: id  1 | task -1 | new slot, n_ctx = 9472",
        {"slot_tokens": 9472},
    ),
    (
        "llama-request-length",
        "llama_context: n_ctx_seq (9472) < n_ctx_train (40960) -- the full capacity of it is",
        {"max_model_len": 9472},
    ),
    (
        "llama-request-length",
        "llama_new_context_with_model: n_ctx_per_seq = 640",
        {"max_model_len": 640},
    ),
    ("llama-kv-window", "llama_kv_cache_iswa: creating     SWA KV cache, size = 640 cells", {}),
    (
        "llama-build-params",
        "common_params_print_info: build 10321 (abc123def) with GNU 12.2.0 for Linux aarch64",
        {"engine_version": "b10321"},
    ),
    (
        "weights-hpu",
        "Pre-loading model weights on hpu:3 took 7.25 GiB of device memory (7.25 GiB/94.6 GiB used)"
        " and 4.5 GiB of host memory (98.9 GiB/1007 GiB used)",
        {"weights_gib": 7.25},
    ),
    (
        "weights-hpu-small",
        "Pre-loading model weights on hpu:0 took 512 MiB of device memory (1 GiB/94.6 GiB used)",
        {"weights_gib": 0.5},
    ),
    ("platform-rocm", "Using aiter frob on ROCm (lazy).", {"platform": "rocm"}),
    ("platform-aiter", "[aiter] frob", {"platform": "rocm"}),
    ("offline-output", "Prompt: 'a b', Generated text: ' c'", {}),
    ("offline-output", "Generated text: ' c'", {}),
    (
        "sglang-args-dict",
        "server_args={'model_path': 'o/m', 'tokenizer_path': 'o/m', 'tp_size': 4, 'port': 30000}",
        {"model": "o/m"},
    ),
    (
        "llama-instance-exited",
        "srv    operator(): instance name=foo exited with status -9",
        {},
    ),
    ("llama-build-main", "main: build = 3210 (abc123d)", {"engine_version": "b3210"}),
    ("sglang-prefill", "Prefill batch, #new-seq: 1, #new-token: 6", {}),
    (
        "sglang-decode",
        "Decode batch. #running-req: 7, #token: 45, token usage: 0.00, gen throughput (token/s): "
        "12.5, #queue-req: 2",
        {"num_running": 7, "generation_tokens_per_s": 12.5, "num_waiting": 2},
    ),
    ("llama-verbosity", "log_info: verbosity = 3 (adjust it)", {}),
    ("llama-system", "device_info:", {}),
    ("llama-begin", "srv          main: loading model", {}),
    ("llama-loaded", "main: model loaded", {}),
    ("llama-loaded", "srv          main: model loaded", {}),
    (
        "llama-router-ready",
        "srv  llama_server: router server is listening on http://127.0.0.1:8099",
        {"server_url": "http://127.0.0.1:8099"},
    ),
    (
        "llama-ready",
        "srv          main: server is listening on http://[::1]:8099",
        {"server_url": "http://[::1]:8099"},
    ),
    (
        "llama-ready",
        "main: server is listening on http://0.0.0.0:8000 - starting",
        {"server_url": "http://0.0.0.0:8000"},
    ),
    ("llama-metadata", "llama_model_loader: loaded meta data", {}),
    ("llama-info", "print_info: arch = qwen2", {}),
    ("llama-stop", "srv    operator(): operator(): cleaning up before exit...", {}),
    ("sglang-args", "server_args=ServerArgs(model_path='o/m', x)", {"model": "o/m"}),
    ("sglang-distributed", "Init torch distributed begin.", {}),
    ("sglang-load", "Load weight begin. avail mem=44.01 GB", {}),
    (
        "sglang-weights",
        "Load weight end. elapsed=10.89 s, type=Q, avail mem=40.99 GB, mem usage=3.03 GB.",
        {"weights_gib": 3.03, "model_load_s": 10.89},
    ),
    (
        "sglang-kv",
        "KV Cache is allocated. #tokens: 12, K size: 17.19 GB, V size: 17.19 GB",
        {"kv_memory_gib": 34.38, "kv_tokens": 12},
    ),
    (
        "sglang-graphs",
        "Capture cuda graph end. Time elapsed: 109.26 s. mem usage=0.18 GB. avail",
        {"graph_gib": 0.18},
    ),
    (
        "sglang-capacity",
        "max_total_num_tokens=12, chunked_prefill_size=4096, context_len=32768, x",
        {"max_model_len": 32768},
    ),
    ("sglang-ready", "The server is fired up and ready to roll!", {}),
    ("sglang-stop", "SIGTERM received. signum=None", {}),
]
