"""The flags of the engines whose logs are read, each table once.

They are written down and not asked of the engine: a log is explained where no engine is installed,
and to import one would take longer than to read the log.
"""

from __future__ import annotations

# All that our own server takes: fixes that need others are left out for it. A test compares them
# with the fields of EngineArgs.
_OWN_FLAG_TEXT = """
--allow-credentials --allowed-headers --allowed-hosts --allowed-methods --allowed-origins
--api-key --api-server-count --attention-backend --block-size --chat-template --convert
--cudagraph-capture-sizes --data-parallel-size
--device --disable-log-stats --disable-uvicorn-access-log --distributed-executor-backend --dtype
--enable-auto-tool-choice
--enable-chunked-prefill --enable-debug-endpoints --enable-log-requests --enable-prefix-caching
--enable-tokenizer-info-endpoint --enforce-eager --generation-config --gpu-memory-utilization
--host --kernels --kv-cache-dtype --kv-cache-memory-bytes --long-prefill-token-threshold
--max-cudagraph-capture-size --max-logprobs --max-model-len --max-num-batched-tokens
--max-num-seqs --model-impl --no-allow-credentials --no-disable-log-stats
--no-disable-uvicorn-access-log --no-enable-auto-tool-choice --no-enable-chunked-prefill
--no-enable-debug-endpoints --no-enable-log-requests --no-enable-prefix-caching
--no-enable-tokenizer-info-endpoint --no-enforce-eager --no-show-prompts --num-gpu-blocks-override
--num-threads --optimization-level --pipeline-parallel-size --pooler-config --port
--quantization --runner
--scheduling-policy --seed --served-model-name --show-prompts --shutdown-timeout
--tensor-parallel-size --tool-call-parser --uds
"""
OWN_FLAGS = frozenset(_OWN_FLAG_TEXT.split())
# Those of vLLM that people mistype.
_VLLM_FLAG_TEXT = """
--model --host --port --api-key --served-model-name --max-model-len --max-num-seqs
--max-num-batched-tokens --gpu-memory-utilization --kv-cache-memory-bytes --kv-cache-dtype
--tensor-parallel-size --pipeline-parallel-size --data-parallel-size --dtype
--quantization --enforce-eager --enable-prefix-caching --no-enable-prefix-caching
--enable-chunked-prefill --trust-remote-code --tokenizer --tokenizer-mode --chat-template
--download-dir --load-format --config-format --revision --hf-token --hf-overrides
--block-size --seed --cpu-offload-gb --enable-lora --max-loras --max-lora-rank
--lora-modules --enable-auto-tool-choice --tool-call-parser --reasoning-parser
--attention-backend --speculative-config --limit-mm-per-prompt --generation-config
--disable-log-stats --shutdown-timeout --distributed-executor-backend --runner --convert
--max-cudagraph-capture-size --structured-outputs-config --enable-expert-parallel
--scheduling-policy
"""
VLLM_FLAGS = tuple(_VLLM_FLAG_TEXT.split())
# Flags that vLLM 0.30 has no longer, and what took their place.
GONE_FLAGS: dict[str, str | None] = {
    "--swap-space": None,
    "--device": None,
    "--use-v2-block-manager": None,
    "--num-scheduler-steps": None,
    "--preemption-mode": None,
    "--enable-reasoning": "--reasoning-parser",
    "--disable-log-requests": "--no-enable-log-requests",
    "--guided-decoding-backend": "--structured-outputs-config",
    "--task": "--runner",
    "--max-seq-len-to-capture": "--max-cudagraph-capture-size",
    "--worker-use-ray": "--distributed-executor-backend ray",
    "--rope-scaling": "--hf-overrides",
    "--rope-theta": "--hf-overrides",
}
# What other engines call vLLM's flags. A fix with a flag that has no name there is left out.
SGLANG_FLAGS = {
    "--max-model-len": "--context-length",
    "--gpu-memory-utilization": "--mem-fraction-static",
    "--tensor-parallel-size": "--tp-size",
    "--pipeline-parallel-size": "--pp-size",
    "--max-num-seqs": "--max-running-requests",
    "--max-num-batched-tokens": "--chunked-prefill-size",
    "--enforce-eager": "--disable-cuda-graph",
    "--disable-custom-all-reduce": "--disable-custom-all-reduce",
    "--trust-remote-code": "--trust-remote-code",
    "--quantization": "--quantization",
    "--dtype": "--dtype",
    "--port": "--port",
    "--host": "--host",
    "--attention-backend": "--attention-backend",
    "--model-impl": "--model-impl",
    "--tokenizer": "--tokenizer-path",
    "--reasoning-parser": "--reasoning-parser",
    "--tool-call-parser": "--tool-call-parser",
    "--chat-template": "--chat-template",
    "--served-model-name": "--served-model-name",
    "--kv-cache-dtype": "--kv-cache-dtype",
    "--hf-overrides": "--json-model-override-args",
}
SGLANG_VALUES = {
    "TRITON_ATTN": "triton",
    "FLASH_ATTN": "fa3",
    "--kv-cache-dtype fp8": "--kv-cache-dtype fp8_e5m2",
}
_LLAMACPP_FLAGS = {"--max-model-len": "--ctx-size", "--port": "--port", "--host": "--host"}
TRANSLATIONS = {"sglang": SGLANG_FLAGS, "llama.cpp": _LLAMACPP_FLAGS}
