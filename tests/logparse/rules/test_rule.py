"""Each rule of the tables by a line written for the test: a new rule needs a line here."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from logparse import LogParser
from logparse.rules.rule import shown_values
from logparse.rules.table import ALL_RULES

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

# Lines that are explained without being kept as facts: (id, message, the values that it shows)
KNOWN: list[tuple[str, str, dict[str, Any]]] = [
    (
        "triton-missing",
        "Triton is installed but 0 active driver(s) found (expected 1). x",
        {"drivers": 0},
    ),
    ("triton-missing", "Triton not installed or not compatible; certain GPU-related x", {}),
    ("importing", "Importing from vllm._C failed with ModuleNotFoundError", {}),
    ("api-servers-default", "Defaulting api_server_count to data_parallel_size (4).", {"count": 4}),
    (
        "offline-model-path",
        "HF_HUB_OFFLINE is True, replace model_id [o/m] to model_path [/c/m]",
        {"name": "o/m", "path": "/c/m"},
    ),
    (
        "file-list-retry",
        "Error retrieving file list: 502 x, retrying 1 of 2",
        {"try": 1, "tries": 2},
    ),
    (
        "runner-resolved",
        "Resolved `--runner auto` to `--runner pooling`. Pass x",
        {"name": "pooling"},
    ),
    (
        "length-assumed",
        "The model's config.json does not contain any of the keys x. Assuming the "
        "model's maximum length is 2048.",
        {"tokens": 2048},
    ),
    (
        "dtype-fallback",
        "Your device 'Tesla T4' (with compute capability 7.5) doesn't support "
        "torch.bfloat16. Falling back to torch.float16 for compatibility.",
        {"asked": "torch.bfloat16", "used": "torch.float16"},
    ),
    (
        "dtype-cast",
        "Casting torch.bfloat16 to torch.float16.",
        {"stored": "bfloat16", "used": "float16"},
    ),
    (
        "quantization-deprecated",
        "The quantization method tpu_int8 is deprecated and will be x",
        {"name": "tpu_int8"},
    ),
    (
        "sampling-defaults",
        "Default vLLM sampling parameters have been overridden by the model's "
        "`generation_config.json`: `{'temperature': 0.6}`. x",
        {},
    ),
    (
        "sampling-defaults",
        "Using default chat sampling params from model: {'top_k': 20}",
        {"parameters": "{'top_k': 20}"},
    ),
    ("kv-dtype", "Using fp8_e4m3 data type to store kv cache. It reduces x", {}),
    (
        "budget-above-need",
        "max_num_batched_tokens (8192) exceeds max_num_seqs * max_model_len (4)",
        {"tokens": 8192},
    ),
    (
        "budget-raised",
        "Raising max_num_batched_tokens from 2048 to 4096 to accommodate x",
        {"from": 2048, "to": 4096},
    ),
    ("executor", "Defaulting to use mp for distributed inference", {"name": "mp"}),
    ("executor", "Using ray distributed inference because data_parallel_backend is ray", {}),
    ("performance-mode", "Performance mode set to 'throughput'.", {"name": "throughput"}),
    ("graphs-off", "Cudagraph is disabled under eager mode", {}),
    ("async-scheduling", "Asynchronous scheduling is enabled.", {"state": "enabled"}),
    ("async-scheduling", "Async scheduling with x will be disabled x", {"state": "disabled"}),
    (
        "model-runner-v1",
        "Model Runner V2 does not yet support lora; using the V1 model runner",
        {"features": "lora"},
    ),
    ("breakable-graphs", "Auto-enabling VLLM_USE_BREAKABLE_CUDAGRAPH=1. Set x", {}),
    ("cascade-attention", "No piecewise cudagraph for executing cascade attention. Will x", {}),
    ("capture-size-cut", "Truncating max_cudagraph_capture_size to 256", {"tokens": 256}),
    (
        "graph-mode-changed",
        "Cudagraph mode FULL is not compatible with compilation mode 0. Overriding to NONE.",
        {"asked": "FULL", "used": "NONE"},
    ),
    (
        "fusions",
        "Enabled custom fusions: norm_quant, act_quant",
        {"names": "norm_quant, act_quant"},
    ),
    ("op-priority", "Final IR op priority after setting platform defaults: x", {}),
    (
        "spawn-forced",
        "We must use the `spawn` multiprocessing start method. x Reasons: CUDA is initialized",
        {"reason": "CUDA is initialized"},
    ),
    (
        "ulimit",
        "Found ulimit of 1024 and failed to automatically increase with error x",
        {"count": 1024},
    ),
    (
        "mixed-gpus",
        "Detected different devices in the system: A, B. Please make sure",
        {"devices": "A, B"},
    ),
    ("wsl-memory", "Using 'pin_memory=False' as WSL is detected. This may slow", {}),
    (
        "extension-missing",
        "Failed to import from vllm._C with ImportError('libcudart.so.13: x')",
        {"name": "C"},
    ),
    (
        "template-fallback",
        "Loading chat template fallback for o/m as there isn't one",
        {"name": "o/m"},
    ),
    ("renderer-warmup", "Chat template warmup completed in 1.250s", {"seconds": 1.25}),
    (
        "unknown-variable",
        "Unknown vLLM environment variable detected: VLLM_FOO",
        {"name": "VLLM_FOO"},
    ),
    (
        "world",
        "world_size=2 rank=1 local_rank=1 distributed_init_method=tcp://x backend=nccl",
        {"world_size": 2, "rank": 1, "backend": "nccl"},
    ),
    (
        "rank",
        "rank 1 in world size 2 is assigned as DP rank 0, PP rank 0, PCP rank 0, TP rank 1",
        {"rank": 1, "world_size": 2, "dp_rank": 0, "pp_rank": 0},
    ),
    ("nccl", "vLLM is using nccl==2.27.3", {"version": "2.27.3"}),
    (
        "all-reduce-off",
        "Custom allreduce is disabled because your platform lacks GPU P2P",
        {"reason": "your platform lacks GPU P2P"},
    ),
    ("message-queue", "vLLM message queue communication handle: Handle(x)", {}),
    ("runner-v2", "Using V2 Model Runner", {}),
    (
        "backend-precluded",
        "--block-size 32 precluded higher-priority backend(s) ['A']. Using B instead",
        {"block_size": 32, "precluded": "['A']", "used": "B"},
    ),
    (
        "vit-backend",
        "Using backend AttentionBackendEnum.FLASH_ATTN for vit attention",
        {"name": "AttentionBackendEnum.FLASH_ATTN"},
    ),
    ("block-size", "Setting attention block size to 528 tokens to ensure x", {}),
    ("mamba-padding", "Padding mamba page size by 1.49% to ensure x", {"percent": 1.49}),
    ("kv-layout", "Using HND KV cache layout.", {"name": "HND"}),
    ("sampler", "Using FlashInfer for top-p & top-k sampling.", {}),
    ("worker-ready", "Started DP Coordinator process (PID: 93)", {"pid": 93}),
    ("api-servers", "Started 4 API server processes", {"count": 4}),
    ("download", "Time spent downloading weights for o/m: 93.1 seconds", {"name": "o/m"}),
    (
        "single-file",
        "No model.safetensors.index.json found in remote.",
        {"name": "model.safetensors.index.json"},
    ),
    (
        "checkpoint-size",
        "Filesystem type for checkpoints: NFS. Checkpoint size: 15.26 GiB. "
        "Available RAM: 60.00 GiB.",
        {"filesystem": "NFS", "available_ram": 60.0},
    ),
    (
        "prefetch-off",
        "Auto-prefetch is disabled because the filesystem (EXT4) is not x",
        {"reason": "the filesystem (EXT4) is not x"},
    ),
    ("prefetch", "Prefetching checkpoint files: 40% (2/5)", {"percent": 40}),
    (
        "prefetch",
        "Prefetching checkpoint files into page cache finished in 12.5s",
        {"seconds": 12.5},
    ),
    (
        "shard-bar",
        "Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:04<00:12]",
        {"done": 1, "total": 4},
    ),
    ("drafter", "Loading drafter model...", {}),
    (
        "quantized-layers",
        "Quantized 112 layers of types: Linear",
        {"count": 112, "types": "Linear"},
    ),
    (
        "moe-config",
        "Using default MoE config. Performance might be sub-optimal! Config file not "
        "found at /v/E=1.json",
        {"path": "/v/E=1.json"},
    ),
    ("uneven-layers", "Hidden layers were unevenly partitioned: [9,8]. x", {"layers": "9,8"}),
    ("openmp-binding", "OMP threads binding of Process 9:", {}),
    (
        "encoder-budget",
        "Encoder cache will be initialized with a budget of 16384 tokens, and "
        "profiled with 1 image items of the maximum",
        {"tokens": 16384, "items": 1, "kind": "image"},
    ),
    ("bitsandbytes", "Loading weights with BitsAndBytes quantization. May take a while ...", {}),
    ("compile-cache-off", "vLLM's torch.compile cache is disabled.", {}),
    ("compile-stored", "Cache the graph of compile range (1, 2048) for later use", {}),
    (
        "compile-time",
        "Compiling a graph for compile range (1, 2048) takes 17.38 s",
        {"range": "compile range (1, 2048)", "seconds": 17.38},
    ),
    (
        "compile-load-time",
        "Directly load the compiled graph(s) for compile range (1, 2048) from "
        "the cache, took 1.203 s",
        {"seconds": 1.203},
    ),
    ("compile-size", "Compile and warming up model for size 8", {"tokens": 8}),
    ("jit-warmup", "JIT kernel warmup finished in 3.20s.", {"seconds": 3.2}),
    ("autotune", "flashinfer.jit: [Autotuner]: Autotuning process starts ...", {}),
    (
        "encoder-compile",
        "torch.compile and initial profiling/warmup run together took 9.5 s in",
        {"seconds": 9.5},
    ),
    (
        "memory-budget",
        "Initial free memory: 23.20 GiB; Requested memory: 0.92 (util), 21.79 GiB",
        {"free": 23.2, "utilization": 0.92, "requested": 21.79},
    ),
    (
        "memory-after-profiling",
        "Free memory after profiling: 6.20 GiB (total), 4.79 GiB (within requested)",
        {"free": 6.2, "within_share": 4.79},
    ),
    (
        "memory-profile",
        "Memory profiling takes 4.1 seconds. Total non KV cache memory: 16.9GiB; "
        "torch peak memory increase: 1.2GiB; x",
        {"seconds": 4.1, "not_kv": 16.9},
    ),
    (
        "memory-share-v0",
        "the current vLLM instance can use total_gpu_memory (23.64GiB) x "
        "gpu_memory_utilization (0.90) = 21.28GiB",
        {"requested": 21.28},
    ),
    (
        "memory-parts-v0",
        "model weights take 14.99GiB; non_torch_memory takes 0.10GiB; PyTorch "
        "activation peak memory takes 1.26GiB; the rest",
        {"weights": 14.99},
    ),
    (
        "memory-profile-oldest",
        "Memory profiling results: total_gpu_memory=23.64GiB "
        "initial_memory_usage=1GiB kv_cache_size=4.20GiB x",
        {"total": 23.64, "kv_memory_gib": 4.2},
    ),
    (
        "graph-profile",
        "Profiling CUDA graph memory: PIECEWISE=51 (largest=512), FULL=35",
        {"graphs": "PIECEWISE=51 (largest=512), FULL=35"},
    ),
    (
        "graph-share",
        "CUDA graph memory profiling is enabled (default since v0.21.0). x increase "
        "--gpu-memory-utilization to 0.9316. x",
        {"state": "enabled", "equivalent_utilization": 0.9316},
    ),
    (
        "memory-report",
        "Free memory on device (23.2/23.64 GiB) on startup. Desired GPU memory "
        "utilization is (0.92, 21.75 GiB). Actual usage is 14.9 GiB for weight, x",
        {"free": 23.2},
    ),
    (
        "memory-report-activation",
        "Free memory on device cuda:0 (23.2/23.64 GiB) on startup. x is "
        "14.9 GiB for weight, 1.25 GiB for peak activation, x",
        {},
    ),
    (
        "cpu-kv-default",
        "Environment variable VLLM_CPU_KVCACHE_SPACE (GiB) for CPU backend is not "
        "set, using 4 by default.",
        {"kv_cache": 4.0},
    ),
    (
        "length-fits",
        "Auto-fit max_model_len: full model context length 8192 fits in available",
        {"tokens": 8192},
    ),
    ("kv-groups", "kv cache group sizes [1, 2]", {"sizes": "[1, 2]"}),
    (
        "kv-padding",
        "Add 2 padding layers, may waste at most 6.25% KV cache memory",
        {"layers": 2, "percent": 6.25},
    ),
    ("kv-hybrid-off", "Hybrid KV cache manager is disabled for this hybrid model, x", {}),
    (
        "kv-override",
        "Overriding num_gpu_blocks=100 with num_gpu_blocks_override=50",
        {"measured": 100, "used": 50},
    ),
    (
        "graph-bar",
        "Capturing CUDA graphs (decode, FULL): 100%|###| 35/35 [00:03<00:00]",
        {"done": 35, "total": 35},
    ),
    (
        "graph-pool",
        "CUDA graph pool memory: 0.31 GiB (actual), 0.40 GiB (estimated), difference: x",
        {"actual": 0.31, "estimated": 0.4},
    ),
    ("graphs-for", "Skipping CUDA graph capture. To turn on", {}),
    ("startup-plan", "Using startup plan /x", {}),
    ("pooling-config", "Resolved pooling config: x, supported_tasks=('embed',)", {}),
    (
        "cache-config-info",
        "Engine 000: vllm cache_config_info with initialization after num_gpu_blocks is: 2545",
        {"blocks": 2545},
    ),
    ("scale-out-off", "Scale-out endpoints are disabled. Set --enable-scale-out x", {}),
    ("dev-endpoints", "SECURITY WARNING: Development endpoints are enabled! x", {}),
    ("tool-choice", '"auto" tool choice has been enabled please note that x', {}),
    ("chat-template", "Using supplied chat template:", {}),
    ("http-starting", "Started server process [93]", {"pid": 93}),
    (
        "stats-off",
        "AsyncLLM created with api_server_count more than 1; disabling stats logging",
        {},
    ),
    (
        "aggregated",
        "2 Engines Aggregated: Avg prompt throughput: 1.5 tokens/s, Avg generation "
        "throughput: 2.5 tokens/s, x",
        {"prompt_tokens_per_s": 1.5, "generation_tokens_per_s": 2.5},
    ),
    ("prefix-hits-v0", "Prefix cache hit rate: GPU: 12.50%, CPU: 0.00%", {"percent": 12.5}),
    (
        "speculative",
        "SpecDecoding metrics: Mean acceptance length: 2.31, Accepted x",
        {"acceptance": 2.31},
    ),
    ("mfu", "Engine 000: MFU: 120.5 TF/s/device 900.1 GB/s/device", {"tflops": 120.5}),
    ("kv-transfer", "KV Transfer metrics: n=1", {"metrics": "n=1"}),
    ("graph-stats", "**CUDAGraph Stats:**", {}),
    (
        "iteration",
        "Engine 000: Iteration(7): 1 context requests, x iteration elapsed time: 12.5 ms",
        {"step": 7, "seconds": 0.0125},
    ),
    ("request-received", "Received request chatcmpl-1: params: x", {"request": "chatcmpl-1"}),
    ("request-added", "Added request chatcmpl-1.", {"request": "chatcmpl-1"}),
    ("request-ended", "Finished request chatcmpl-1.", {"request": "chatcmpl-1."}),
    ("request-aborted", "Aborted request(s) chatcmpl-1.", {"request": "chatcmpl-1."}),
    ("request-failed", "Request a-1 failed (engine dead).", {"request": "a-1", "state": "failed"}),
    (
        "queue-full",
        "Request queue full - rejecting request a-1 (current=9, n=1, max=9).",
        {"request": "a-1"},
    ),
    (
        "broadcast-wait",
        "No available shared memory broadcast block found in 60 seconds. x",
        {"seconds": 60.0},
    ),
    ("prefix-reset", "Successfully reset prefix cache", {}),
    ("sleep", "It took 1.25 seconds to fall asleep.", {"value": 1.25}),
    ("sleep", "Sleep mode freed 18.5 GiB memory, 1.0 GiB memory is still in use.", {"value": 18.5}),
    ("pause", "setting pause state to PAUSED_NEW", {"state": "PAUSED_NEW"}),
    (
        "preempted-v0",
        "Sequence group cmpl-1 is preempted by PreemptionMode.RECOMPUTE mode because "
        "there is not x. total_num_cumulative_preemption=51",
        {"request": "cmpl-1", "mode": "RECOMPUTE", "total": 51},
    ),
    (
        "content-format",
        "Detected the chat template content format to be 'string'. You can",
        {"format": "string"},
    ),
    ("lora", "Loaded new LoRA adapter: name 'a', path '/a'", {"name": "a"}),
    ("start-failed", "WorkerProc failed to start.", {}),
    ("dump", "Dumping scheduler stats: SchedulerStats(x)", {}),
    ("output-handler", "AsyncLLM output_handler failed.", {}),
    ("shutdown-engine", "[shutdown] EngineCore: exiting busy loop", {"step": " exiting busy loop"}),
    (
        "shutdown-port",
        "port 8000 is used by process psutil.Process(pid=1) launched with command:",
        {"port": 8000},
    ),
    ("shutdown-http", "Waiting for application shutdown.", {}),
    ("shutdown-workers", "Parent process exited, terminating worker queues", {}),
    ("shutdown-signal", "Received signal 15", {"number": 15}),
    (
        "leaked-memory",
        "resource_tracker: There appear to be 1 leaked shared_memory objects to x",
        {"count": 1},
    ),
    (
        "argument-block-size argument-gpu-memory-utilization",
        "non-default args: {'block_size': 32, 'gpu_memory_utilization': 0.8}",
        {"block_size": 32, "gpu_memory_utilization": 0.8},
    ),
    # Our own engine's.
    (
        "stoker-native-kernels",
        "Native kernels for AVX-512 are used on this CPU: the best it has.",
        {"instructions": "AVX-512"},
    ),
    (
        "stoker-few-files",
        "This process may open 256 files, which is enough for 100 connections; allow more with x",
        {"files": 256, "connections": 100},
    ),
    ("stoker-no-numbers", "The logits of request r-1 are NaN; it ends.", {"request": "r-1"}),
    (
        "stoker-grammar-process",
        "The process that compiles grammars ended with code -9.",
        {"code": -9},
    ),
    (
        "stoker-kernels-again",
        "CPU kernels are built again: somebody else wrote it.",
        {"reason": "somebody else wrote it"},
    ),
    (
        "stoker-no-native-kernels",
        "Native CPU kernels are not used: no compiler was found.",
        {"reason": "no compiler was found"},
    ),
    ("stoker-reference-kernels", "Reference kernels (torch) are used: --kernels asks.", {}),
    ("stoker-kernel-build-time", "Building CPU kernels took 21.5 seconds", {"seconds": 21.5}),
    (
        "stoker-kernel-build",
        "Building CPU kernels for AVX2 with /usr/bin/g++ (once)...",
        {"instructions": "AVX2", "compiler": "/usr/bin/g++"},
    ),
    ("stoker-kernel-build-wait", "Another start builds the CPU kernels; waiting for it...", {}),
    (
        "stoker-kernel-build-left",
        "Removing /c/b, left by a build that was killed.",
        {"path": "/c/b"},
    ),
    (
        "stoker-kernels-unusable",
        "CPU kernels in /c/k are damaged and are built again.",
        {"path": "/c/k"},
    ),
    (
        "stoker-packing",
        "Packing weights (layers in int8, head in bf16) took 1.25 seconds",
        {"layers": "int8", "head": "bf16", "seconds": 1.25},
    ),
    (
        "stoker-packed-read",
        "Reading packed weights (0.25 GiB) took 0.50 seconds",
        {"size": 0.25, "seconds": 0.5},
    ),
    (
        "stoker-packed-kept",
        "Keeping packed weights for the next start took 0.75 seconds",
        {"seconds": 0.75},
    ),
    ("stoker-packed-removed", "Removed packed weights /c/p: the cache is full.", {"path": "/c/p"}),
    (
        "stoker-packed-unused",
        "Packed weights in /c/p are not used: it was cut.",
        {"reason": "it was cut"},
    ),
    ("stoker-converting", "Converting m.gguf to safetensors, once, into /c", {"path": "m.gguf"}),
    ("stoker-downloading", "Downloading o/m from the Hugging Face hub", {"model": "o/m"}),
    ("stoker-no-key", "Listening on 0.0.0.0 without an API key: x", {"address": "0.0.0.0"}),
    ("stoker-engine-died", "EngineCore died: exit code -9", {"reason": "exit code -9"}),
    ("stoker-output-handler", "AsyncLLM output handler failed.", {}),
    (
        "stoker-engine-killed",
        "[shutdown] MPClient: EngineCore still running; sending SIGKILL",
        {},
    ),
    (
        "stoker-grammar",
        "Grammar of request cmpl-1 failed: no such rule",
        {"request": "cmpl-1", "reason": "no such rule"},
    ),
    ("sglang-child-died", "Received sigquit from a child process. It usually means x", {}),
    ("uvicorn-socket", "Uvicorn running on socket ('127.0.0.1', 81) (Press CTRL+C to quit)", {}),
    ("engine-dead-v0", "MQLLMEngine is already dead, terminating server process", {}),
    ("llama-devices", "ggml_cuda_init: found 2 CUDA devices:", {}),
    ("llama-setup", "llm_load_print_meta: n_layer = 3", {}),
    ("llama-loaded-old", 'INFO [                    main] model loaded | tid="1" x', {}),
    ("llama-idle-old", 'INFO [            update_slots] all slots are idle | tid="1"', {}),
    ("llama-idle", "srv  update_slots: all slots are idle", {}),
    # Those that no first word finds.
    ("stoker-transformers", "o/m runs in the Transformers implementation, which is slower.", {}),
    ("stoker-unused-tensors", "9 tensors of the checkpoint are not used: a, b.", {"tensors": 9}),
    ("stoker-route-failed", "POST /v1/completions failed.", {"path": "/v1/completions"}),
    (
        "access",
        '10.0.0.1:4000 - "GET /health HTTP/1.1" 200 OK',
        {"method": "GET", "path": "/health", "status": 200},
    ),
    (
        "cache-config-info-all",
        "2 Engines: vllm cache_config_info with initialization after num_gpu_blocks is: 99",
        {"blocks": 99},
    ),
]


def matching(message: str) -> set[str]:
    return {rule.id for rule in ALL_RULES if message.startswith(rule.starts) and rule.find(message)}


@pytest.mark.parametrize(("ids", "message", "facts"), CASES)
def test_rule(ids: str, message: str, facts: dict[str, Any]) -> None:
    assert set(ids.split()) <= matching(message)
    parser = LogParser()
    parser.feed(f"INFO 10-03 12:00:00 [some.py:1] {message}")
    found = parser.report().facts
    assert {key: getattr(found, key) for key in facts} == facts


@pytest.mark.parametrize(("ids", "message", "values"), KNOWN)
def test_line_that_is_only_explained(ids: str, message: str, values: dict[str, Any]) -> None:
    rules = [rule for rule in ALL_RULES if rule.id in ids.split()]
    assert len(rules) == len(ids.split())
    shown: dict[str, Any] = {}
    for rule in rules:
        assert message.startswith(rule.starts)
        match = rule.find(message)
        assert match is not None
        shown |= shown_values(rule, match)
        assert rule.source
    assert {key: shown[key] for key in values} == {
        key: value.strip() if isinstance(value, str) else value for key, value in values.items()
    }


def test_memory_account_gives_facts() -> None:
    parser = LogParser()
    for message in (case[1] for case in KNOWN if case[0].startswith(("memory-", "block", "check"))):
        parser.feed(f"INFO 10-03 12:00:00 [some.py:1] {message}")
    facts = parser.report().facts
    assert (facts.gpu_total_gib, facts.gpu_memory_utilization) == (23.64, 0.92)
    assert (facts.peak_activation_gib, facts.non_torch_gib) == (1.25, 0.1)
    assert (facts.block_size, facts.checkpoint_gib) == (528, 15.26)


def test_every_rule_has_a_line_here() -> None:
    covered = {rule_id for ids, _, _ in [*CASES, *KNOWN] for rule_id in ids.split()}
    assert {rule.id for rule in ALL_RULES} == covered


def test_ids_are_unique_and_phases_are_one_of_five() -> None:
    assert [rule_id for rule_id, n in Counter(rule.id for rule in ALL_RULES).items() if n > 1] == []
    assert {rule.belongs_to for rule in ALL_RULES} <= {None, 1, 2, 3, 4, 5}
    assert all(rule.meaning.endswith((".", ")")) for rule in ALL_RULES)
