"""A line for each rule that only explains, with the values that it shows."""

from __future__ import annotations

from typing import Any

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
    ("sleep-as-it-was", "Executor is already sleeping.", {}),
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
        "stoker-drafts",
        "Drafts (n-gram lookup) are on: a step may give a request up to 16 tokens. Start with "
        "--speculative-config null to turn them off.",
        {"tokens": 16},
    ),
    (
        "stoker-few-files",
        "This process may open 256 files, which is enough for 100 connections; allow more with x",
        {"files": 256, "connections": 100},
    ),
    (
        "stoker-quantised-checkpoint",
        "The checkpoint is quantised (gptq, 4 bits, groups of 128); its weights are dequantised "
        "while they are loaded.",
        {"format": "gptq, 4 bits, groups of 128"},
    ),
    (
        "stoker-adapter-loaded",
        "Loaded LoRA adapter sql (12.5 MB) from /adapters/sql",
        {"adapter": "sql", "path": "/adapters/sql"},
    ),
    (
        "stoker-adapter-refused",
        "LoRA adapter sql is not loaded: No such adapter folder: /adapters/sql.",
        {"adapter": "sql", "reason": "No such adapter folder: /adapters/sql."},
    ),
    ("stoker-adapter-unloaded", "Unloaded LoRA adapter sql", {"adapter": "sql"}),
    ("stoker-adapters-without-graphs", "CUDA graphs are off: adapters change the steps.", {}),
    (
        "stoker-experts-without-graphs",
        "CUDA graphs are off: which experts run changes from step to step.",
        {},
    ),
    (
        "stoker-image-tower",
        "Loading the image tower (0.17 GiB) took 1.25 seconds",
        {"size": 0.17, "seconds": 1.25},
    ),
    ("stoker-no-numbers", "The logits of request r-1 are NaN; it ends.", {"request": "r-1"}),
    (
        "stoker-job-process",
        "The process that compiles grammars ended with code -9.",
        {"duty": "compiles grammars", "code": -9},
    ),
    (
        "stoker-job-process",
        "The process that unpacks images ended with code 1.",
        {"duty": "unpacks images", "code": 1},
    ),
    (
        "stoker-kernels-again",
        "CPU kernels are built again: somebody else wrote it.",
        {"reason": "somebody else wrote it"},
    ),
    (
        "stoker-triton-kernels",
        "Triton kernels are used with the tiles of sm_90.",
        {"instructions": "sm_90"},
    ),
    (
        "stoker-triton-interpreted",
        "Triton kernels run in Triton's interpreter on this CPU (TRITON_INTERPRET=1): x",
        {},
    ),
    (
        "stoker-no-triton-kernels",
        "Triton kernels are not used: they have no code for this architecture.",
        {"reason": "they have no code for this architecture"},
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
        "stoker-memory-turn",
        "Waiting for process 4711, which measures the free RAM; its turn comes first.",
        {"waits_for_pid": 4711},
    ),
    (
        "stoker-no-memory-turn",
        "Other starts are not waited for while the free RAM is measured: [Errno 28] No space left",
        {"reason": "[Errno 28] No space left"},
    ),
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
    ("stoker-downloading", "Downloading o/m: 40% (1.20 GiB of 3.00 GiB)", {"model": "o/m"}),
    ("stoker-no-key", "Listening on 0.0.0.0 without an API key: x", {"address": "0.0.0.0"}),
    ("stoker-engine-died", "EngineCore died: exit code -9", {"reason": "exit code -9"}),
    ("stoker-output-handler", "AsyncLLM output handler failed.", {}),
    (
        "stoker-engine-killed",
        "[shutdown] MPClient: EngineCore still running; sending SIGKILL",
        {},
    ),
    (
        "stoker-quantised-checkpoint",
        "The checkpoint is quantised (awq); its weights are dequantised while they are loaded.",
        {"format": "awq"},
    ),
    (
        "stoker-encoder",
        "The encoder BertModel answers with vectors and keeps no KV cache. Its blocks only "
        "count the tokens of a step.",
        {"architecture": "BertModel"},
    ),
    (
        "stoker-unknown-tools",
        "Tools of type web_search, namespace are left out: no such tool here.",
        {"type": "web_search, namespace"},
    ),
    ("stoker-watch-failed", "The watch over EngineCore_DP1 failed.", {"over": "EngineCore_DP1"}),
    (
        "stoker-replica-down",
        "EngineCore_DP1 is down: 6 of its requests failed.",
        {"copy": "_DP1", "requests": 6},
    ),
    ("stoker-child-again", "ApiServer_1 is started again (1 of 3).", {"try": 1, "tries": 3}),
    ("stoker-child-failed", "DPCoordinator did not start: no port", {"reason": "no port"}),
    ("stoker-child-back", "EngineCore_DP0 (pid 812) serves again.", {"pid": 812}),
    ("stoker-no-api-server", "No API server is left.", {}),
    (
        "stoker-child-killed",
        "[shutdown] ApiServer_0 still running; sending SIGKILL",
        {"process": "ApiServer_0"},
    ),
    (
        "stoker-own-cache",
        "Each request keeps 2048 bytes for each token and 96.5 KiB of state in transformers' own "
        "cache, and runs alone; prefix caching is off.",
        {"bytes": 2048, "state_kib": 96.5},
    ),
    (
        "stoker-parser",
        "Parser of thoughts: qwen3 (the chat template has <think>).",
        {"of": "thoughts", "parser": "qwen3", "reason": "the chat template has <think>"},
    ),
    (
        "stoker-ray-rank",
        "Worker_PP1 (node 10.0.0.2, ce4a305e, pid 71) is an actor of Ray.",
        {"rank": "_PP1", "node": "10.0.0.2"},
    ),
    ("stoker-rank-lost", "Another rank is gone: exit code -9", {"reason": "exit code -9"}),
    (
        "stoker-replica",
        "Replica EngineCore_DP1 (pid 71) died: exit code -9",
        {"replica": "EngineCore_DP1", "what": "died: exit code -9"},
    ),
    ("stoker-last-lines", "last lines of Worker_TP1: Killed", {"process": "Worker_TP1"}),
    (
        "stoker-rank-still",
        "Worker proc Worker_TP1 has not moved for 60.0 s",
        {"process": "Worker_TP1", "seconds": 60.0},
    ),
    (
        "stoker-rank-disagrees",
        "Worker proc Worker_TP1 disagrees with Worker_TP0: in step 7 it computed other tokens",
        {"process": "Worker_TP1", "others": "Worker_TP0"},
    ),
    (
        "stoker-nodes-awaited",
        "Waiting for 2 other nodes at 10.0.0.1:29501.",
        {"node": "2 other nodes"},
    ),
    ("stoker-nodes-awaited", "Waiting for node 0 at 10.0.0.1:29501.", {"node": "node 0"}),
    (
        "stoker-nodes-awaited",
        "Waiting for node 2: type the command of this node there, with --node-rank 2 x",
        {"node": "node 2"},
    ),
    ("stoker-node-came", "Node 1 (10.0.0.2) has joined.", {}),
    (
        "stoker-node-came",
        "Joined node 0 at 10.0.0.1:29501; waiting for the other nodes.",
        {},
    ),
    (
        "stoker-node-refused",
        "Somebody at 10.0.0.9 could not join as a node: it has another secret.",
        {"reason": "it has another secret."},
    ),
    (
        "stoker-node-refused",
        "Node 3 at 10.0.0.2 is refused: --node-rank 3 is not from 1 to 2.",
        {"reason": "--node-rank 3 is not from 1 to 2."},
    ),
    ("stoker-node-went", "Node 1 (10.0.0.2) has gone again.", {"node": "1 (10.0.0.2)"}),
    (
        "stoker-node-serves",
        "Node serves node 0 at 10.0.0.1 with Worker_TP2, Worker_TP3.",
        {"ranks": "Worker_TP2, Worker_TP3"},
    ),
    ("stoker-node-ended", "Node 0 ends this node.", {}),
    (
        "stoker-node-lost",
        "Node 0 at 10.0.0.1 is gone: [Errno 104] Connection reset by peer.",
        {"node": "0 at 10.0.0.1"},
    ),
    (
        "stoker-node-lost",
        "Node 1 (10.0.0.2) has not answered for 60 s: x",
        {"node": "1 (10.0.0.2)"},
    ),
    ("stoker-node-stops", "[shutdown] Node: trigger received signal=SIGTERM", {}),
    ("stoker-rank-ended", "Worker_TP3 has ended (exit code: -9).", {}),
    (
        "stoker-ranks-apart",
        "torch's kernels are used: the ranks of a layer are on several machines.",
        {"reason": "the ranks of a layer are on several machines"},
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
    ("stoker-measured-inputs", "Measuring inputs for int4 took 0.31 seconds.", {"seconds": 0.31}),
    (
        "stoker-traffic-record",
        "The traffic record /var/day.jsonl lacks 3 request(s).",
        {"file": "/var/day.jsonl", "what": "lacks 3 request(s)"},
    ),
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
