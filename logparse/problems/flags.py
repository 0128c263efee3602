"""The flags of the engines whose logs are read, each table once.

They are written down and not asked of the engine: a log is explained where no engine is installed,
and to import one would take longer than to read the log.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

Version = tuple[int, ...]

# All that our own server takes: fixes that need others are left out for it. A test compares them
# with the fields of EngineArgs.
_OWN_FLAG_TEXT = """
--async-scheduling --no-async-scheduling
--allow-credentials --allowed-headers --allowed-hosts --allowed-media-domains --allowed-methods
--allowed-origins
--api-key --api-server-count --attention-backend --block-size --chat-template --convert
--compilation-config --cudagraph-capture-sizes --data-parallel-routing --data-parallel-size
--device --distributed-timeout-seconds --headless --no-headless
--disable-log-stats --disable-uvicorn-access-log --distributed-executor-backend --dtype
--enable-auto-tool-choice
--enable-chunked-prefill --enable-debug-endpoints --enable-log-requests --enable-lora
--enable-sleep-mode --no-enable-sleep-mode
--enable-prefix-caching --lora-modules --max-cpu-loras --max-lora-rank --max-loras --no-enable-lora
--enable-tokenizer-info-endpoint --enforce-eager --generation-config --gpu-memory-utilization
--host --kernels --kv-cache-dtype --kv-cache-memory-bytes --limit-mm-per-prompt
--long-prefill-token-threshold --master-addr --master-port --nnodes --node-key-file --node-rank
--max-cudagraph-capture-size --max-logprobs --max-model-len --max-num-batched-tokens
--max-num-queued-reqs --max-num-queued-tokens
--max-num-seqs --model-impl --no-allow-credentials --no-disable-log-stats
--no-disable-uvicorn-access-log --no-enable-auto-tool-choice --no-enable-chunked-prefill
--no-enable-debug-endpoints --no-enable-log-requests --no-enable-prefix-caching
--no-enable-tokenizer-info-endpoint --no-enforce-eager --no-show-prompts --num-gpu-blocks-override
--num-threads --optimization-level --pipeline-parallel-size --pooler-config --port
--quantization --reasoning-parser --record-traffic --record-traffic-max-bytes --runner
--scheduling-policy --seed --served-model-name --show-prompts --shutdown-timeout
--speculative-config
--tensor-parallel-size --tool-call-parser --ttft-target-ms --uds
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
--scheduling-policy --nnodes --node-rank --master-addr --master-port --headless
"""
VLLM_FLAGS = tuple(_VLLM_FLAG_TEXT.split())
# Of these, those without a value.
_VLLM_SWITCH_TEXT = """
--enforce-eager --enable-prefix-caching --enable-chunked-prefill --trust-remote-code --enable-lora
--enable-auto-tool-choice --disable-log-stats --enable-expert-parallel --headless
"""
VLLM_SWITCHES = frozenset(_VLLM_SWITCH_TEXT.split())
# The first release of vLLM with a flag, where older ones are still in use.
FIRST_RELEASES: dict[str, Version] = {
    "--runner": (0, 10, 1),
    "--convert": (0, 10, 1),
    "--enable-log-requests": (0, 10, 1),
    "--no-enable-log-requests": (0, 10, 1),
    "--mm-processor-cache-gb": (0, 10, 1),
    "--kv-cache-memory-bytes": (0, 11, 0),
    "--structured-outputs-config": (0, 11, 0),
    "--attention-backend": (0, 13, 0),
    "--cudagraph-capture-sizes": (0, 12, 0),
    "--max-cudagraph-capture-size": (0, 12, 0),
    "--pooler-config": (0, 12, 0),
    "--speculative-config": (0, 8, 3),
    "--reasoning-parser": (0, 7, 2),
    "--hf-overrides": (0, 6, 4),
}


def version_of(text: str | None) -> Version | None:
    """`0.8.5.post1` as (0, 8, 5); None for what does not begin like a release."""
    match = re.match(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", text or "")
    return tuple(int(part or 0) for part in match.groups()) if match else None


def knows_flag(flag: str, version: Version | None) -> bool:
    """Whether a release of vLLM has a flag that the newest has; None is the newest."""
    name = flag.partition(".")[0]  # `--structured-outputs-config.backend`
    return version is None or version >= FIRST_RELEASES.get(name, (0,))


@dataclass(frozen=True, slots=True)
class GoneFlag:
    """A flag that vLLM refuses from the release `since` on; `reason` says what it does instead.

    `successor` is what took its place, {value} being the old flag's; `by_value` has those that
    depend on it.
    """

    since: Version
    reason: str
    successor: str | None = None
    by_value: tuple[tuple[str, str], ...] = ()
    is_switch: bool = False

    def is_gone(self, version: Version | None) -> bool:
        """Whether this release refuses it; None is the newest."""
        return version is None or version >= self.since

    def replacement(self, value: str | None = None, version: Version | None = None) -> str | None:
        """What to type in its place; None where that release has nothing."""
        found = dict(self.by_value).get(value or "", self.successor)
        if found is None or not knows_flag(found.split()[0], version):
            return None
        return found.replace("{value}", value) if value else found.replace(" {value}", "")


_GRAPHS = "batches up to this size are replayed from CUDA graphs"
_RAY = "the executor is chosen by one flag"
_ROPE = "what differs from config.json is given as JSON"
GONE_FLAGS: dict[str, GoneFlag] = {
    "--swap-space": GoneFlag(
        (0, 18, 0), "a preempted request is computed again, none is swapped to the CPU's memory"
    ),
    "--device": GoneFlag((0, 10, 0), "the build decides it; CUDA_VISIBLE_DEVICES picks GPUs"),
    "--use-v2-block-manager": GoneFlag((0, 10, 0), "there is one block manager", is_switch=True),
    "--num-scheduler-steps": GoneFlag(
        (0, 10, 1), "the next step is planned while one runs, without a flag"
    ),
    "--multi-step-stream-outputs": GoneFlag((0, 10, 1), "every step's tokens are streamed at once"),
    "--num-lookahead-slots": GoneFlag((0, 10, 0), "speculative decoding reserves them itself"),
    "--scheduler-delay-factor": GoneFlag((0, 11, 0), "prompts start as soon as there is room"),
    "--preemption-mode": GoneFlag((0, 11, 0), "a preempted request is always computed again"),
    "--max-num-partial-prefills": GoneFlag(
        (0, 12, 0), "any number of prompts share a step's token budget"
    ),
    "--max-long-partial-prefills": GoneFlag(
        (0, 12, 0),
        "a long prompt's share of a step is limited in tokens",
        "--long-prefill-token-threshold",
    ),
    "--enable-reasoning": GoneFlag(
        (0, 10, 0), "naming a parser switches it on", "--reasoning-parser", is_switch=True
    ),
    "--disable-log-requests": GoneFlag(
        (0, 12, 0),
        "requests are logged only when asked for",
        "--no-enable-log-requests",
        is_switch=True,
    ),
    "--guided-decoding-backend": GoneFlag(
        (0, 12, 0),
        "structured outputs have one setting",
        "--structured-outputs-config.backend {value}",
    ),
    "--task": GoneFlag(
        (0, 13, 0),
        "the runner follows from the model, or is named",
        "--runner",
        (
            ("generate", "--runner generate"),
            *((task, "--runner pooling") for task in ("embed", "embedding", "score", "reward")),
            ("classify", "--runner pooling"),
            ("auto", "--runner auto"),
        ),
    ),
    "--max-seq-len-to-capture": GoneFlag((0, 11, 0), _GRAPHS, "--max-cudagraph-capture-size"),
    "--max-context-len-to-capture": GoneFlag((0, 6, 0), _GRAPHS, "--max-cudagraph-capture-size"),
    "--cuda-graph-sizes": GoneFlag(
        (0, 12, 0), "the sizes are given as a list", "--cudagraph-capture-sizes {value}"
    ),
    "--worker-use-ray": GoneFlag(
        (0, 10, 0), _RAY, "--distributed-executor-backend ray", is_switch=True
    ),
    "--engine-use-ray": GoneFlag((0, 6, 0), "the engine has a process of its own", is_switch=True),
    "--rope-scaling": GoneFlag((0, 12, 0), _ROPE, "--hf-overrides"),
    "--rope-theta": GoneFlag((0, 12, 0), _ROPE, "--hf-overrides"),
    "--speculative-model": GoneFlag(
        (0, 9, 0), "speculative decoding has one setting in JSON", "--speculative-config"
    ),
    "--override-pooler-config": GoneFlag(
        (0, 12, 0), "the word override was dropped", "--pooler-config {value}"
    ),
    "--disable-mm-preprocessor-cache": GoneFlag(
        (0, 11, 0), "the cache has a size", "--mm-processor-cache-gb 0", is_switch=True
    ),
    "--tokenizer-pool-size": GoneFlag((0, 10, 0), "the API server tokenizes by itself"),
    "--lora-extra-vocab-size": GoneFlag((0, 12, 0), "adapters bring no tokens of their own"),
}
# Flags of today's vLLM that our own server does not have, and what to do there instead.
_MODEL_DECIDES = "the model's files decide it: leave it out"
OWN_ANSWERS: dict[str, str] = {
    "--trust-remote-code": "no code of a model's repository is ever run: leave it out",
    "--download-dir": "the environment says where the hub's models are kept: HF_HUB_CACHE={value}",
    "--hf-token": "`stoker models login` or HF_TOKEN; other users can read a command line",
    "--tokenizer": _MODEL_DECIDES,
    "--tokenizer-mode": _MODEL_DECIDES,
    "--config-format": _MODEL_DECIDES,
    "--load-format": "safetensors and GGUF files are told apart by themselves: leave it out",
    "--revision": "the newest one is served; another one is served by its folder",
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
