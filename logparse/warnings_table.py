"""Warnings that matter, as a table: how the line looks, why it matters, what to do.

Rank 1 costs correctness or safety, 2 capacity, 3 speed, 4 is worth knowing. Warnings that no entry
describes are only counted.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WarningRule:
    """One warning; a line is one when it holds a clue. `fixes` are (text, command or None)."""

    id: str
    rank: int
    clues: tuple[str, ...]
    title: str
    why: str
    fixes: tuple[tuple[str, str | None], ...]


WARNING_RULES: tuple[WarningRule, ...] = (
    WarningRule(
        "extension-missing",
        1,
        ("Failed to import from vllm._", "Failed to import from vllm.vllm_"),
        "a compiled part of vLLM could not be loaded",
        "The install does not fit this machine; what uses that part fails later.",
        (("see which build fits this machine", "stoker doctor"),),
    ),
    WarningRule(
        "dev-endpoints",
        1,
        ("Development endpoints are enabled",),
        "anyone who reaches the port can stop or reset the server",
        "Development routes are open.",
        (("close them", "unset VLLM_SERVER_DEV_MODE"),),
    ),
    WarningRule(
        "device-incompatible",
        1,
        ("is not compatible with the current PyTorch installation",),
        "this PyTorch has no code for the GPU",
        "The first computation on it will fail.",
        (("see which build fits this machine", "stoker doctor"),),
    ),
    WarningRule(
        "no-driver",
        1,
        ("CUDA initialization:", "Can't initialize NVML"),
        "CUDA could not be used when it was first asked",
        "Driver, container or visible devices are not as this build needs them.",
        (("see what the driver says", "nvidia-smi"),),
    ),
    WarningRule(
        "long-model-len",
        1,
        ("VLLM_ALLOW_LONG_MAX_MODEL_LEN",),
        "the maximum length is above what the model was made for",
        "Answers to long prompts may be nonsense or NaN.",
        (("leave the variable unset", "unset VLLM_ALLOW_LONG_MAX_MODEL_LEN"),),
    ),
    WarningRule(
        "sampling-defaults",
        1,
        ("sampling parameters have been overridden",),
        "the model's generation_config.json changes the answers",
        "Temperature and the like come from the model unless a request names them.",
        (("use the neutral defaults", "{serve} --generation-config vllm"),),
    ),
    WarningRule(
        "length-assumed",
        1,
        ("does not contain any of the keys", "does not contain any of the following keys"),
        "the model does not say how long its sequences may be",
        "A guess is used, usually 2048 tokens.",
        (("say it", "{serve} --max-model-len <tokens>"),),
    ),
    WarningRule(
        "fp8-without-scales",
        1,
        (
            "Using KV cache scaling factor 1.0",
            "without scaling factor",
            "may cause accuracy issues",
            "accuracy drop without a proper scaling factor",
        ),
        "the 8-bit KV cache has no scaling factors",
        "Without them answers may be less exact.",
        (
            ("use a checkpoint with scales", None),
            ("keep the model's format", "{serve} --kv-cache-dtype auto"),
        ),
    ),
    WarningRule(
        "tokenizer-slow",
        3,
        ("Using a slow tokenizer",),
        "the tokenizer is the slow one",
        "It is many times slower and can hold up the GPU.",
        (("use the fast one", "{serve} --tokenizer-mode auto"),),
    ),
    WarningRule(
        "hub-retries",
        2,
        ("Error retrieving file list",),
        "the hub did not answer at once",
        "Network or token; the start waits for it.",
        (("serve what is in the cache", "HF_HUB_OFFLINE=1 {serve}"),),
    ),
    WarningRule(
        "kv-default-cpu",
        2,
        ("VLLM_CPU_KVCACHE_SPACE",),
        "the CPU's KV cache has its default size",
        "It is rarely the size that fits the machine.",
        (("set it", "VLLM_CPU_KVCACHE_SPACE=16 {serve}"),),
    ),
    WarningRule(
        "hybrid-kv-off",
        2,
        ("Hybrid KV cache manager is disabled",),
        "layers with a window keep all tokens",
        "The KV cache holds fewer requests than this model allows.",
        (("leave out what switches it off (KV connector, prefix caching events)", None),),
    ),
    WarningRule(
        "kv-padding",
        2,
        ("padding layers, may waste",),
        "a part of the KV cache cannot be used",
        "Groups of layers were filled up to the same size.",
        (("nothing to do; a newer release may pack better", "pip install -U vllm"),),
    ),
    WarningRule(
        "preempted",
        2,
        ("is preempted by",),
        "requests were preempted: the KV cache was full",
        "A preempted request is computed again from its beginning.",
        (
            ("give the KV cache more memory", "{serve} --gpu-memory-utilization {share_up}"),
            ("allow fewer requests at once", "{serve} --max-num-seqs {seqs_half}"),
        ),
    ),
    WarningRule(
        "model-type-mix",
        1,
        ("to instantiate a model of type",),
        "the model's configuration names another type than the code that loads it",
        "It may load and still answer wrongly.",
        (("use a release that knows the model", "pip install -U vllm transformers"),),
    ),
    WarningRule(
        "ulimit",
        2,
        ("Found ulimit of",),
        "few open files are allowed",
        "Under load connections will be refused.",
        (("raise the limit", "ulimit -n 65535"),),
    ),
    WarningRule(
        "eager",
        3,
        ("Enforce eager set", "enforce-eager is enabled"),
        "compilation and CUDA graphs are off",
        "The start is faster, small batches are much slower.",
        (("leave --enforce-eager out", "{serve}"),),
    ),
    WarningRule(
        "transformers-fallback",
        3,
        ("has no vLLM implementation, falling back to Transformers",),
        "the model runs in Transformers' own code",
        "That is slower than an implementation of vLLM's own.",
        (("use a release that knows the model", "pip install -U vllm"),),
    ),
    WarningRule(
        "all-reduce-off",
        3,
        ("Custom allreduce is disabled",),
        "sums over GPUs go through NCCL",
        "Tensor parallelism is slower without direct access between the GPUs.",
        (
            ("see how the GPUs are connected", "nvidia-smi topo -m"),
            ("say it yourself, and the warning goes", "{serve} --disable-custom-all-reduce"),
        ),
    ),
    WarningRule(
        "moe-config",
        3,
        ("Using default MoE config",),
        "no tuned table for the experts on this GPU",
        "They may run slower; nothing else changes.",
        (("nothing to do, or tune them with vLLM's benchmark_moe.py", None),),
    ),
    WarningRule(
        "quantization-not-optimized",
        3,
        ("quantization is not fully optimized yet", "is not as fast as"),
        "this quantisation is slower than it could be",
        "A faster kernel exists for the same weights, or none for this GPU.",
        (("leave --quantization out: the server picks the best", "{serve}"),),
    ),
    WarningRule(
        "weight-only-fp8",
        3,
        ("does not have native support for FP8", "Weight-only FP8 compression will be used"),
        "this GPU has no FP8 arithmetic",
        "Weights are stored in FP8 and computed in 16 bits: less memory, no more speed.",
        (("for speed use AWQ or GPTQ on this GPU", None),),
    ),
    WarningRule(
        "dtype-fallback",
        3,
        ("Falling back to torch.float16 for compatibility", "Casting torch."),
        "the model is computed in another number format than it was trained in",
        "The device, or --dtype, asks for it; very large values may overflow in float16.",
        (("let the server choose", "{serve} --dtype auto"),),
    ),
    WarningRule(
        "wsl",
        3,
        ("pin_memory=False",),
        "copies to the GPU are slower under WSL",
        "Main memory cannot be pinned there.",
        (("nothing to do; on Linux it is gone", None),),
    ),
    WarningRule(
        "preload",
        3,
        ("not found in LD_PRELOAD",),
        "faster memory and thread libraries are not preloaded",
        "The CPU backend is noticeably slower without them.",
        (("preload them", "LD_PRELOAD=libtcmalloc_minimal.so.4:libiomp5.so {serve}"),),
    ),
    WarningRule(
        "backend-precluded",
        3,
        ("precluded higher-priority backend",),
        "--block-size rules out a faster attention backend",
        "The backend chosen instead may be slower.",
        (("leave --block-size out", "{serve}"),),
    ),
    WarningRule(
        "flash-attention-missing",
        3,
        ("Cannot use FlashAttention", "FlashInfer is not available", "Cannot use FA version"),
        "a faster attention or sampling kernel cannot be used",
        "The GPU, the number format or the install does not allow it.",
        (("install it", "pip install flashinfer-python"),),
    ),
    WarningRule(
        "jit-while-serving",
        3,
        ("JIT compiled during inference", "JIT compilation during inference"),
        "a kernel was compiled while a request waited",
        "That request took seconds longer; later ones do not.",
        (("send one request after each start, before the users do", None),),
    ),
    WarningRule(
        "spec-decode-slow",
        3,
        ("Speculative decoding is not yet optimized",),
        "speculative decoding may not make this faster",
        "Compare with and without it.",
        (("measure it", "stoker bench --help"),),
    ),
    WarningRule(
        "async-scheduling-off",
        3,
        ("Async scheduling",),
        "the next step is not planned ahead",
        "A feature in use does not allow it; the GPU waits a little between steps.",
        (("nothing to do while that feature is used", None),),
    ),
    WarningRule(
        "retried-port",
        4,
        ("Address already in use. Retrying with a new port",),
        "a port between the processes was taken",
        "Another was used; an older server may still run.",
        (("look for it", "pgrep -af 'VLLM::|vllm serve'"),),
    ),
    WarningRule(
        "mixed-gpus",
        4,
        ("Detected different devices in the system",),
        "the GPUs are of several kinds",
        "Their numbers differ between tools.",
        (("number them as nvidia-smi does", "export CUDA_DEVICE_ORDER=PCI_BUS_ID"),),
    ),
    WarningRule(
        "deprecated",
        4,
        ("deprecated", "will be removed in"),
        "an option or format will go",
        "A later release will refuse it.",
        (("see what replaces it in the line", "{program} --help"),),
    ),
    WarningRule(
        "unknown-variable",
        4,
        ("Unknown vLLM environment variable",),
        "a variable has no effect",
        "This release does not know it: a slip of the pen, or gone.",
        (("see the variables that are set", "env | grep VLLM_"),),
    ),
    WarningRule(
        "stats-off",
        4,
        ("disabling stats logging",),
        "no throughput line will be printed",
        "With several API servers the figures would be incomplete.",
        (("read them from the metrics", "curl localhost:{port}/metrics"),),
    ),
)
