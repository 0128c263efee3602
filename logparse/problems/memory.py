"""Causes of family A: weights, activations, graphs or KV cache do not fit into memory."""

from __future__ import annotations

import math

from logparse.problems.problem import (
    FREE_GPU,
    MORE_GPUS,
    OUT_OF_MEMORY,
    QUANTISE,
    SMALLER_MODEL,
    ProblemRule,
    Values,
    patterns,
)

_OUT = r"(?:CUDA|HIP|XPU|NPU|HPU) out of memory"
_WANTED = _OUT + r"\. Tried to allocate (?P<wanted>[\d.]{1,12} [KMG]iB)"
_USED_UP = _OUT + r"|CUDA error: out of memory"


def _larger_share(values: Values) -> Values:
    """A CPU share that leaves at least 2 GiB above what is used now."""
    try:
        kv, asked, total = (float(values[key]) for key in ("kv", "asked", "total"))
    except (KeyError, ValueError):
        return {}
    share = math.ceil((asked - kv + 2.0) / total * 20) / 20 if total > 0 else 1.0
    return {"larger_share": f"{share:.2f}"} if kv < 0 and 0 < share <= 0.95 else {}


MEMORY_PROBLEMS: tuple[ProblemRule, ...] = (
    ProblemRule(
        "A1",
        patterns(
            r"To serve at least one request with the models?'?s? max seq len "
            r"\((?P<asked>\d{1,12})\), "
            r"\(?(?P<need>[\d.]{1,12}) GiB KV cache is needed, which is larger than the "
            r"available KV "
            r"cache memory \((?P<have>-?[\d.]{1,12}) GiB\)"
            r"(?:\. Based on the available memory, the estimated maximum model length is "
            r"(?P<fit>\d{1,12}))?"
        ),
        ("one request of {asked} tokens needs {need} GiB of KV cache, {have} GiB are there",),
        "After the weights, the activations and the graphs, what is left of the memory share is "
        "less than "
        "one request of the maximum length needs.",
        (
            ("serve the length that fits", "{serve} --max-model-len {fit}"),
            ("let the server find the length that fits", "{serve} --max-model-len auto"),
            ("let the server find the size of the cache", "{serve} ~{fixed_cache}"),
            ("give the server more of the memory", "{serve} --gpu-memory-utilization {share_up}"),
            FREE_GPU,
            ("store the KV cache in 8 bits", "{serve} --kv-cache-dtype fp8"),
            ("do without CUDA graphs", "{serve} --enforce-eager"),
            (
                "lower the activation peak",
                "{serve} --max-num-batched-tokens {budget_half} --max-num-seqs {seqs_half}",
            ),
            MORE_GPUS,
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "A1",
        patterns(
            r"The model's max seq len \((?P<asked>\d{1,12})\) is larger than the maximum number "
            r"of tokens "
            r"that can be stored in KV cache \((?P<fit>\d{1,12})\)"
        ),
        ("one request of {asked} tokens does not fit into the {fit} tokens of the KV cache",),
        "What is left of the memory share after loading holds fewer tokens than the "
        "maximum length.",
        (
            ("serve the length that fits", "{serve} --max-model-len {fit}"),
            ("give the server more of the memory", "{serve} --gpu-memory-utilization {share_up}"),
            FREE_GPU,
            ("store the KV cache in 8 bits", "{serve} --kv-cache-dtype fp8"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "A11",
        patterns(r"Cannot auto-fit max_model_len: not enough"),
        ("no length fits: there is no memory for even one token of KV cache",),
        "Weights and activations use up the whole share of memory that the server may take.",
        (
            ("give the server more of the memory", "{serve} --gpu-memory-utilization {share_up}"),
            ("do without CUDA graphs", "{serve} --enforce-eager"),
            ("make a step smaller", "{serve} --max-num-batched-tokens {budget_half}"),
            MORE_GPUS,
            SMALLER_MODEL,
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "A2",
        patterns(r"No available memory for the cache blocks(?:: (?P<have>-?[\d.]{1,12}) GiB)?"),
        ("no memory is left for the KV cache",),
        "Weights and activations use up the whole share of memory that the server may take.",
        (
            ("give the server more of the memory", "{serve} --gpu-memory-utilization {share_up}"),
            ("do without CUDA graphs", "{serve} --enforce-eager"),
            (
                "lower the activation peak",
                "{serve} --max-num-batched-tokens {budget_half} --max-num-seqs {seqs_half}",
            ),
            MORE_GPUS,
            SMALLER_MODEL,
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "A3",
        patterns(
            r"Free memory on device(?: cuda:(?P<device>\d{1,3}))? \((?P<free>[\d.]{1,12})"
            r"/(?P<total>[\d.]{1,12}) GiB\) "
            r"on startup is less than desired GPU memory utilization "
            r"\((?P<share>[\d.]{1,12}), (?P<asked>[\d.]{1,12}) GiB\)"
        ),
        ("{asked} GiB of GPU memory were asked for ({share} of {total} GiB), {free} GiB are free",),
        "Another process holds GPU memory: often a server that was killed but left a VLLM:: "
        "process, a "
        "notebook, or the desktop.",
        (
            FREE_GPU,
            ("take only what is free", "{serve} --gpu-memory-utilization {fitting_share}"),
            (
                "a smaller share does not help: {free} GiB do not hold the weights (about "
                "{weights} GiB)",
                None,
            ),
            ("use another GPU", "CUDA_VISIBLE_DEVICES=1 {serve}"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "A4",
        patterns(r"Error in memory profiling\. Initial free memory"),
        ("another process released GPU memory while this server measured it",),
        "The measurement needs the rest of the GPU to hold still; two servers that start together "
        "disturb "
        "each other.",
        (
            ("start the servers one after the other", "{serve}"),
            ("fix the size instead of measuring it", "{serve} --kv-cache-memory-bytes {kv_bytes}"),
        ),
    ),
    ProblemRule(
        "A7",
        patterns(
            r"CUDA out of memory occurred when warming up (?:sampler|pooler)[^\n]{0,60}? with "
            r"(?P<rows>\d{1,9}) dummy requests"
        ),
        ("the memory is used up while warming up with {rows} requests",),
        "The KV cache is already allocated; the logits of that many sequences do not fit "
        "beside it.",
        (
            ("allow fewer requests at once", "{serve} --max-num-seqs {seqs_half}"),
            ("leave more memory free", "{serve} --gpu-memory-utilization {share_down}"),
        ),
    ),
    ProblemRule(
        "A8",
        patterns(_USED_UP),
        ("the memory is used up while capturing CUDA graphs",),
        "Graph pools and communication buffers lie outside of the memory that was planned.",
        (
            ("leave more memory free", "{serve} --gpu-memory-utilization {share_down}"),
            ("capture fewer sizes", "{serve} --max-cudagraph-capture-size 128"),
            ("do without CUDA graphs", "{serve} --enforce-eager"),
        ),
        functions=frozenset({"capture_model", "_capture_cudagraphs", "capture_graph"}),
    ),
    ProblemRule(
        "A6",
        patterns(
            _WANTED,
            _USED_UP,
        ),
        (
            "the trial run does not fit into GPU memory (another {wanted} were wanted)",
            "the trial run does not fit into GPU memory",
        ),
        "The activations of one full step (max-num-batched-tokens tokens, the logits of "
        "max-num-seqs "
        "requests, or the image encoder) are too large.",
        (
            ("make a step smaller", "{serve} --max-num-batched-tokens {budget_half}"),
            ("allow fewer requests at once", "{serve} --max-num-seqs {seqs_half}"),
            ("allow fewer images in one prompt", "{serve} --limit-mm-per-prompt '{{\"image\":1}}'"),
            ("avoid fragmentation", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True {serve}"),
            MORE_GPUS,
        ),
        functions=frozenset({"profile_run", "_dummy_run", "determine_available_memory"}),
    ),
    ProblemRule(
        "A15",
        patterns(*OUT_OF_MEMORY),
        (
            "the memory left after loading does not hold the KV cache (another {wanted} were "
            "wanted, {free} were free)",
            "the memory left after loading does not hold the KV cache",
        ),
        "The size of the cache was planned, but something else took the memory before it was "
        "allocated: another process, or buffers that the plan does not count.",
        (
            FREE_GPU,
            ("leave more memory free", "{serve} --gpu-memory-utilization {share_down}"),
            ("set the cache's size", "{serve} --kv-cache-memory-bytes {kv_bytes}"),
        ),
        functions=frozenset(
            {
                "initialize_kv_cache",
                "initialize_kv_cache_tensors",
                "initialize_from_config",
                "_allocate_kv_cache_tensors",
                "_allocate_kv_cache",
                "init_memory_pool",
                "_init_cache_engine",
                "_create_buffers",
            }
        ),
    ),
    ProblemRule(
        "A6",
        patterns(
            r"Error in model execution[^\n]{0,200}? out of memory(?:\. Tried to allocate "
            r"(?P<wanted>[\d.]{1,12} [KMG]iB))?"
        ),
        (
            "one step does not fit into GPU memory (another {wanted} were wanted)",
            "one step does not fit into GPU memory",
        ),
        "The activations of one full step (max-num-batched-tokens tokens, the logits of "
        "max-num-seqs requests, or the image encoder) are too large.",
        (
            ("make a step smaller", "{serve} --max-num-batched-tokens {budget_half}"),
            ("allow fewer requests at once", "{serve} --max-num-seqs {seqs_half}"),
            MORE_GPUS,
        ),
    ),
    ProblemRule(
        "A5",
        patterns(
            _WANTED + r"[.( ]{1,2}(?:GPU|NPU) "
            r"(?P<device>\d{1,3}) has a "
            r"total capacity of (?P<total>[\d.]{1,12} [KMG]iB) of which (?P<free>[\d.]{1,12} "
            r"[KMG]iB) is free",
            r"Failed to load model - not enough GPU memory",
            _WANTED,
            r"OutOfMemoryError|(?:HIP|XPU|NPU|HPU) out of memory",
        ),
        (
            "the weights do not fit into GPU memory (another {wanted} were wanted, {free} of "
            "{total} were free)",
            "the weights do not fit into GPU memory (another {wanted} were wanted)",
            "the weights do not fit into GPU memory",
        ),
        "The weights of one rank are larger than the GPU's free memory. --gpu-memory-utilization "
        "does not "
        "limit the loading of weights, so lowering it does not help here.",
        (
            ("use a quantised checkpoint of the model", None),
            QUANTISE,
            MORE_GPUS,
            ("keep a part of the weights in main memory", "{serve} --cpu-offload-gb 8"),
            FREE_GPU,
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "A10",
        patterns(
            r"max_num_seqs \((?P<asked>\d{1,9})\) exceeds available Mamba cache blocks "
            r"\((?P<limit>\d{1,9})\)"
        ),
        ("{asked} requests at once were asked for, the Mamba cache holds {limit}",),
        "Each running request of this kind of model needs a block of its own.",
        (
            ("allow as many as fit", "{serve} --max-num-seqs {limit}"),
            ("do without CUDA graphs", "{serve} --enforce-eager"),
        ),
    ),
    ProblemRule(
        "A13",
        patterns(
            r"Available memory on node (?P<node>\d{1,3}) \((?P<free>[\d.]{1,12})"
            r"/(?P<total>[\d.]{1,12}) GiB\) on kv cache "
            r"allocation is less than requested memory for kv \((?P<kv>-[\d.]{1,12})"
            r"/(?P<asked>[\d.]{1,12}) GiB\)"
        ),
        ("nothing of the {asked} GiB share is left for the KV cache after loading ({kv} GiB)",),
        "On the CPU, --gpu-memory-utilization is the share of main memory for everything. "
        "Weights and "
        "activations already use more than it, so freeing memory elsewhere (as the message says) "
        "does not help.",
        (
            ("allow a larger share", "{serve} --gpu-memory-utilization {larger_share}"),
            ("set the cache alone", "{serve} --kv-cache-memory-bytes {kv_bytes}"),
            SMALLER_MODEL,
        ),
        is_fatal=True,
        derive=_larger_share,
    ),
    ProblemRule(
        "A13",
        patterns(
            r"Available memory on node (?P<node>\d{1,3}) \((?P<free>[\d.]{1,12})"
            r"/(?P<total>[\d.]{1,12}) GiB\) on startup is "
            r"less than desired CPU memory utilization \((?P<share>[\d.]{1,12}), "
            r"(?P<asked>[\d.]{1,12}) GiB\)",
            r"Available memory on node (?P<node>\d{1,3}) \((?P<free>[\d.]{1,12})"
            r"/(?P<total>[\d.]{1,12}) GiB\) on kv cache "
            r"allocation is less than requested memory for kv \((?P<asked>[\d./]{1,24}) GiB\)",
        ),
        ("{asked} GiB of main memory were asked for, {free} of {total} GiB are free",),
        "On the CPU, --gpu-memory-utilization means a share of main memory.",
        (
            ("ask for what is free", "{serve} --gpu-memory-utilization {fitting_share}"),
            ("set the cache alone", "VLLM_CPU_KVCACHE_SPACE=4 {serve}"),
            ("see what else uses the memory", "ps aux --sort=-rss | head"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "A12",
        patterns(
            r"Failed core proc\(s\): \{[^}]{0,300}: (?:-9|137)\b",
            r"(?:^|: line \d{1,9}:\s{1,9}\d{1,9} |Out of memory: )Killed|oom-kill:|OOMKilled",
            r"(?:died|exited) (?:unexpectedly|during initialization) \(exit code:? -9\)",
            r"status=9/KILL|result 'oom-kill'|killed by the OOM killer|exited with code 137\b",
        ),
        ("a process was killed from outside, most likely because main memory ran out",),
        "No Python error and SIGKILL: the kernel or the container's limit ended the process. "
        "Reading the "
        "checkpoint into memory, offloading and many compiling workers are the usual reasons.",
        (
            ("see whether the kernel did it", "dmesg | grep -i 'out of memory'"),
            ("raise the memory limit of the container or machine", None),
            ("read the files lazily", "{serve} --safetensors-load-strategy lazy"),
            ("compile with fewer processes", "MAX_JOBS=2 TORCHINDUCTOR_COMPILE_THREADS=1 {serve}"),
        ),
    ),
)
