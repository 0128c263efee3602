"""Each rule of the tables by a line written for the test: a new rule needs a line here."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from logparse import LogParser
from logparse.parser import ALL_RULES

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
    ("llama-slots", "srv    load_model: initializing slots, n_slots = 1", {}),
    ("llama-loaded", "main: model loaded", {}),
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


def matching(message: str) -> set[str]:
    return {rule.id for rule in ALL_RULES if rule.pattern.match(message)}


@pytest.mark.parametrize(("ids", "message", "facts"), CASES)
def test_rule(ids: str, message: str, facts: dict[str, Any]) -> None:
    assert set(ids.split()) <= matching(message)
    parser = LogParser()
    parser.feed(f"INFO 10-03 12:00:00 [some.py:1] {message}")
    found = parser.report().facts
    assert {key: getattr(found, key) for key in facts} == facts


def test_every_rule_has_a_line_here() -> None:
    covered = {rule_id for ids, _, _ in CASES for rule_id in ids.split()}
    assert {rule.id for rule in ALL_RULES} == covered


def test_ids_are_unique_and_phases_are_one_of_five() -> None:
    assert [rule_id for rule_id, n in Counter(rule.id for rule in ALL_RULES).items() if n > 1] == []
    assert {rule.phase for rule in ALL_RULES} <= {None, 1, 2, 3, 4, 5}
    assert all(rule.meaning.endswith((".", ")")) for rule in ALL_RULES)
