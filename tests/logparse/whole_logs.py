"""Short logs of every kind, as the engines write them."""

from __future__ import annotations

from tests.places import DATA

API, CORE = "\x1b[1;36m(APIServer pid=70)\x1b[0;0m ", "\x1b[1;36m(EngineCore_DP0 pid=71)\x1b[0;0m "
READY = [
    f"{API}INFO 10-03 12:00:00 [api_server.py:1] vLLM API server version 0.11.0",
    f"{API}INFO 10-03 12:00:00 [utils.py:2] non-default args: {{'model': 'org/m', 'port': 8100}}",
    f"{API}INFO 10-03 12:00:01 [model.py:1] Resolved architecture: FrobForCausalLM",
    f"{API}INFO 10-03 12:00:01 [model.py:2] Using max model len 4096",
    f"{CORE}INFO 10-03 12:00:02 [gpu_model_runner.py:1] Starting to load model org/m...",
    f"{CORE}",
    f"{CORE}Loading safetensors checkpoint shards:   0% Completed | 0/2 [00:00<?, ?it/s]",
    f"{CORE}Loading safetensors checkpoint shards: 100% Completed | 2/2 [00:01<00:00,  1.8it/s]",
    f"{CORE}INFO 10-03 12:00:03 [default_loader.py:1] Loading weights took 1.37 seconds",
    f"{CORE}INFO 10-03 12:00:03 [gpu_model_runner.py:2] Model loading took 7.6065 GiB and 1.720459 "
    "seconds",
    f"{CORE}WARNING 10-03 12:00:04 [topk.py:59] FlashInfer is not available. Falling back to it.",
    f"{CORE}INFO 10-03 12:00:05 [monitor.py:34] torch.compile takes 7.22 s in total",
    f"{CORE}INFO 10-03 12:00:06 [gpu_worker.py:255] Available KV cache memory: 1.78 GiB",
    f"{CORE}INFO 10-03 12:00:06 [kv_cache_utils.py:833] GPU KV cache size: 12,928 tokens",
    f"{CORE}INFO 10-03 12:00:06 [kv_cache_utils.py:837] Maximum concurrency for 4,096 tokens per "
    "request: 3.16x",
    f"{CORE}Capturing CUDA graphs:   0%|          | 0/3 [00:00<?, ?it/s]",
    f"{CORE}Capturing CUDA graphs: 100%|██████████| 3/3 [00:00<00:00,  5.52it/s]",
    f"{CORE}INFO 10-03 12:00:07 [gpu_model_runner.py:3] Graph capturing finished in 1 secs, took "
    "0.38 GiB",
    f"{CORE}INFO 10-03 12:00:07 [core.py:1] init engine (profile, create kv cache, warmup model) "
    "took 4.25 seconds",
    f"{API}INFO 10-03 12:00:08 [api_server.py:9] Starting vLLM API server 0 on http://0.0.0.0:8100",
    f"{API}INFO 10-03 12:00:08 [launcher.py:1] Available routes are:",
    f"{API}INFO:     Started server process [70]",
    f"{API}INFO:     Waiting for application startup.",
    f"{API}INFO:     Application startup complete.",
    f'{API}INFO:     127.0.0.1:45790 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
]
BARE = [
    "Traceback (most recent call last):",
    '  File "/opt/venv/bin/vllm", line 8, in <module>',
    "    sys.exit(main())",
    "             ^^^^^^",
    '  File "/opt/venv/lib/python3.12/site-packages/vllm/cli/main.py", line 73, in main',
    "    args.dispatch_function(args)",
    '  File "/opt/venv/lib/python3.12/site-packages/vllm/engine/arg_utils.py", line 9, in f',
    "    raise ValueError(",
    "ValueError: The frobnicator 'x' needs \"y\": 3 < 4 & more, see https://example.org/a?b=1&c=2",
]
USAGE = [
    "usage: vllm serve [model_tag] [options]",
    "vllm serve: error: unrecognized arguments: --max-modl-len 100",
]
BARS = [
    "Loading safetensors checkpoint shards:   0% Completed | 0/4 [00:00<?, ?it/s]",
    "Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:01<00:03,  1.31s/it]",
    "",
    "Loading safetensors checkpoint shards: 100% Completed | 4/4 [00:04<00:00,  1.05s/it]",
    "INFO 10-03 12:00:03 [default_loader.py:1] Loading weights took 4.20 seconds",
    "INFO 10-03 12:00:03 [gpu_model_runner.py:2] Model loading took 7.6065 GiB and 4.720459 "
    "seconds",
    "Capturing CUDA graph shapes:   0%|          | 0/67 [00:00<?, ?it/s]",
    "Capturing CUDA graph shapes:   3%|▎         | 2/67 [00:00<00:11,  5.52it/s]",
    "Capturing CUDA graph shapes: 100%|██████████| 67/67 [00:11<00:00,  5.79it/s]",
]
FAILED = [
    f"{API}INFO 10-03 12:00:00 [api_server.py:1] vLLM API server version 0.11.0",
    f"{CORE}INFO 10-03 12:00:02 [gpu_model_runner.py:1] Starting to load model org/m...",
    f"{CORE}ERROR 10-03 12:00:03 [core.py:700] EngineCore failed to start.",
    f"{CORE}ERROR 10-03 12:00:03 [core.py:700] Traceback (most recent call last):",
    f'{CORE}ERROR 10-03 12:00:03 [core.py:700]   File "/p/vllm/v1/engine/core.py", line 3, in run',
    f"{CORE}ERROR 10-03 12:00:03 [core.py:700]     engine_core = EngineCoreProc(*args)",
    f"{CORE}ERROR 10-03 12:00:03 [core.py:700] FrobError: no frob",
    f"{CORE}Process EngineCore_DP0:",
    f"{CORE}Traceback (most recent call last):",
    f'{CORE}  File "/p/vllm/v1/engine/core.py", line 3, in run',
    f"{CORE}    engine_core = EngineCoreProc(*args)",
    f"{CORE}FrobError: no frob",
    f"{API}Traceback (most recent call last):",
    f'{API}  File "/p/vllm/v1/engine/utils.py", line 3, in wait_for_engine_startup',
    f'{API}    raise RuntimeError("Engine core initialization failed. "',
    f"{API}RuntimeError: Engine core initialization failed. See root cause above. Failed core "
    "proc(s): {}",
]
SGLANG = [
    "[2026-10-03 12:00:01] server_args=ServerArgs(model_path='org/m', port=30000)",
    "[2026-10-03 12:00:03 TP0] Load weight begin. avail mem=20.5 GB",
    "Loading safetensors checkpoint shards: 100% Completed | 2/2 [00:01<00:00,  1.31it/s]",
    "",
    "[2026-10-03 12:00:04 TP0] Load weight end. type=Frob, dtype=torch.bfloat16, avail mem=21.96 "
    "GB, mem usage=8.81 GB.",
    "[2026-10-03 12:00:05 TP0] KV Cache is allocated. #tokens: 132681, K size: 9.11 GB, V size: "
    "9.11 GB",
    "[2026-10-03 12:00:06] INFO:     Started server process [70]",
    "[2026-10-03 12:00:06] INFO:     Uvicorn running on http://127.0.0.1:30000 (Press CTRL+C to "
    "quit)",
    "[2026-10-03 12:00:09] The server is fired up and ready to roll!",
]
SGLANG_FAILED = [
    "[2026-10-03 12:00:03 DP0 TP0 EP0] Load weight begin. avail mem=20.5 GB",
    "[2026-10-03 12:00:04 DP0 TP0 EP0] Scheduler hit an exception: Traceback (most recent call "
    "last):",
    '  File "/sgl/python/sglang/srt/managers/scheduler.py", line 3, in run_scheduler_process',
    "    scheduler = Scheduler(server_args)",
    "ValueError: the frobnicator must be one token",
    "",
    "[2026-10-03 12:00:05] Received sigquit from a child process. It usually means the child "
    "failed.",
]
LLAMA = [
    "build: 7780 (abcdef12) with GNU 13.3.0 for Linux x86_64",
    "main: loading model",
    "llama_model_loader: loaded meta data with 30 key-value pairs from m.gguf (version GGUF V3)",
    "print_info: arch             = frob",
    "load_tensors:   CPU_Mapped model buffer size =   680.00 MiB",
    "load_tensors:        CUDA0 model buffer size =  2048.00 MiB",
    ".............",
    "llama_context: n_ctx         = 4096",
    "llama_kv_cache:      CUDA0 KV buffer size =   512.00 MiB",
    "srv    load_model: initializing slots, n_slots = 4",
    "main: model loaded",
    "main: server is listening on http://127.0.0.1:8080 - starting the main loop",
    "srv  update_slots: all slots are idle",
]
LLAMA_FAILED = [
    "build: 7780 (abcdef12) with GNU 13.3.0 for Linux x86_64",
    "main: loading model",
    "gguf_init_from_file: invalid magic characters: 'frob', expected 'GGUF'",
    "llama_model_load: error loading model: llama_model_loader: failed to load model from m.gguf",
    "srv    load_model: failed to load model, 'm.gguf'",
    "main: exiting due to model loading error",
]
OWN = (DATA / "own_engine_start.log").read_text().splitlines()
LOGS = {
    "ready": READY,
    "failed": FAILED,
    "bare traceback": BARE,
    "usage": USAGE,
    "bars": BARS,
    "own": OWN,
    "sglang": SGLANG,
    "sglang failed": SGLANG_FAILED,
    "llama": LLAMA,
    "llama failed": LLAMA_FAILED,
}
