"""Where a start that just stops usually hangs, by its last line and by its phase."""

from __future__ import annotations

_Hang = tuple[tuple[str, ...], str, str]
# (what the last line begins with, what is going on, a template of what to try)
_AFTER_LINE: tuple[_Hang, ...] = (
    (
        ("vLLM is using nccl", "Found nccl from library"),
        "the GPUs cannot reach each other (peer access, IOMMU)",
        "NCCL_P2P_DISABLE=1 NCCL_DEBUG=INFO {serve}",
    ),
    (
        ("Initializing a V1 LLM engine", "Initializing a V0 LLM engine", "world_size=", "rank "),
        "the processes look for each other on the wrong network interface",
        "VLLM_HOST_IP=127.0.0.1 GLOO_SOCKET_IFNAME=lo NCCL_SOCKET_IFNAME=lo {serve}",
    ),
    (
        ("Starting to load model", "Loading model from scratch", "Using ", "Load weight begin"),
        "weights come slowly from a network disk, or are being downloaded",
        "{serve} --safetensors-load-strategy prefetch",
    ),
    (
        ("Using cache directory", "Dynamo bytecode", "Compiling a graph", "Cache the graph"),
        "compiling with a cold cache: minutes are normal, few cores or little memory make it worse",
        "MAX_JOBS=2 {serve}",
    ),
    (
        ("No available shared memory broadcast block",),
        "one worker is busy (compiling) or hangs; look at each with py-spy",
        "NCCL_DEBUG=INFO {serve}",
    ),
    (
        ("Error retrieving file list",),
        "the hub does not answer",
        "HF_HUB_OFFLINE=1 {serve}",
    ),
    (
        ("Capturing", "Graph capturing", "Capture cuda graph begin"),
        "capturing CUDA graphs",
        "{serve} --enforce-eager",
    ),
)
# What the last line holds anywhere, what is going on, what to try.
_WITHIN_LINE: tuple[_Hang, ...] = (
    (
        ("waiting to acquire lock",),
        "another process downloads the same file, and this one waits for its lock; if none does, "
        "the lock was left over by a process that was killed",
        "ls -l ~/.cache/huggingface/hub/.locks",
    ),
    (
        ("waiting for baton release", "Waiting for lock", "waiting for lock"),
        "another process builds kernels, and this one waits for its lock; if nothing is being "
        "built, the lock was left over by a process that was killed: delete the file",
        "pgrep -af 'ninja|nvcc|hipcc|clang'",
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
_LOADING = 2
_READING = "Starting to load model"
HANGS = (*_WITHIN_LINE, *_AFTER_LINE)


def usual_hang(
    phase_number: int, last_message: str | None, *, is_loaded: bool = False
) -> tuple[str, str | None]:
    """What usually takes long, or hangs, at this point; and a template of what to try. With
    `is_loaded` the weights are in memory, also if no line of the next phase came.
    """
    last = last_message or ""
    for words, text, lever in _WITHIN_LINE:
        if any(word in last for word in words):
            return text, lever
    for starts, text, lever in _AFTER_LINE:
        if last.startswith(starts) and not (is_loaded and _READING in starts):
            return text, lever
    is_past_loading = is_loaded and phase_number == _LOADING
    return _IN_PHASE[phase_number - (0 if is_past_loading else 1)], None
