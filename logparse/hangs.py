"""Where a start that just stops usually hangs, by its last line and by its phase."""

from __future__ import annotations

# (what the last line begins with, what is going on, what to try)
_AFTER_LINE = (
    (
        ("vLLM is using nccl", "Found nccl from library"),
        "the GPUs cannot reach each other (peer access, IOMMU)",
        "NCCL_P2P_DISABLE=1 NCCL_DEBUG=INFO",
    ),
    (
        ("Initializing a V1 LLM engine", "Initializing a V0 LLM engine", "world_size=", "rank "),
        "the processes look for each other on the wrong network interface",
        "VLLM_HOST_IP=127.0.0.1 GLOO_SOCKET_IFNAME=lo NCCL_SOCKET_IFNAME=lo",
    ),
    (
        ("Starting to load model", "Loading model from scratch", "Using ", "Load weight begin"),
        "weights come slowly from a network disk, or are being downloaded",
        "--safetensors-load-strategy prefetch",
    ),
    (
        ("Using cache directory", "Dynamo bytecode", "Compiling a graph", "Cache the graph"),
        "compiling with a cold cache: minutes are normal, few cores or little memory make it worse",
        "MAX_JOBS=2",
    ),
    (
        ("No available shared memory broadcast block",),
        "one worker is busy (compiling) or hangs; look at each with py-spy",
        "NCCL_DEBUG=INFO",
    ),
    (
        ("Error retrieving file list",),
        "the hub does not answer",
        "HF_HUB_OFFLINE=1",
    ),
    (
        ("Capturing", "Graph capturing", "Capture cuda graph begin"),
        "capturing CUDA graphs",
        "--enforce-eager",
    ),
)
# By phase, when the last line says nothing.
_IN_PHASE = (
    "reading the model's configuration from the hub (network, HF_TOKEN)",
    "reading weights from a slow disk, or GPUs that cannot reach each other (NCCL_DEBUG=INFO "
    "shows it)",
    "compiling with a cold cache: minutes are normal, the next start is faster",
    "measuring memory or capturing graphs",
    "setting up the API",
)


def usual_hang(phase_number: int, last_message: str | None) -> tuple[str, str | None]:
    """What usually takes long, or hangs, at this point; and a flag or variables to try."""
    for starts, text, lever in _AFTER_LINE:
        if last_message is not None and last_message.startswith(starts):
            return text, lever
    return _IN_PHASE[phase_number - 1], None
