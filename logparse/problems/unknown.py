"""What can be said of a failure that no rule describes: what kind of thing it touched, by the
exception and by the code that raised it, and what to look at.

Kinds are tried in order; the first whose words stand in the exception or in a frame counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from logparse.problems.clues import compiled
from logparse.problems.problem import NEWER_PACKAGES


@dataclass(frozen=True, slots=True)
class Kind:
    """`name` completes "it has to do with"; `raised` is looked for in the exception's line,
    `frames` in the path and function of a frame. Fixes are (text, command or None).
    """

    name: str
    raised: str | None
    frames: str | None
    fixes: tuple[tuple[str, str | None], ...]


_EAGER = ("see whether it runs without compilation and graphs", "{serve} --enforce-eager")
_CACHES = (
    "delete kernels that were built by older versions",
    "rm -rf ~/.triton/cache ~/.cache/flashinfer ~/.cache/torch_extensions",
)
KINDS = (
    Kind(
        "a package: one is missing, or two do not fit together",
        (
            r"^(?:ImportError|ModuleNotFoundError|\S*PackageNotFoundError|\S*VersionConflict)"
            r"|has no attribute '\w+'$|unexpected keyword argument|missing \d+ required positional"
            r"|undefined symbol|cannot open shared object|takes \d+ positional arguments? but"
        ),
        None,
        (
            ("see what does not fit together", "pip check"),
            ("see the versions", "pip list | grep -i -E 'torch|transformers|{package}'"),
            (
                "install into a fresh environment",
                "uv venv && uv pip install {package} --torch-backend=auto",
            ),
        ),
    ),
    Kind(
        "the network or a hub",
        (
            r"ConnectionError|ConnectTimeout|ReadTimeout|HTTPError|HfHub|SSLError|ProxyError"
            r"|URLError|NameResolution|gaierror|ClientError|HTTPStatusError|Max retries"
        ),
        r"/(?:requests|urllib3?|httpx|httpcore|aiohttp|huggingface_hub|modelscope)/",
        (
            ("see whether the hub answers here", "curl -sI https://huggingface.co"),
            ("serve what is in the cache", "HF_HUB_OFFLINE=1 {serve}"),
            ("download before the start", "{hub_download} {repo_id}"),
        ),
    ),
    Kind(
        "the GPU, its driver or its memory",
        (
            r"\b(?:CUDA|HIP|ROCm|cuBLAS|CUBLAS|cuDNN|CUDNN|NVML|XPU|NPU|Ascend|ACL|HPU)\b"
            r"|cuda\w*error|hip\w*error|AcceleratorError|device-side|GPU"
        ),
        r"/torch/(?:cuda|xpu|npu|accelerator)/|/torch_npu/|/habana|/pynvml|/amdsmi",
        (
            ("see what the driver says", "nvidia-smi"),
            ("find the place", "CUDA_LAUNCH_BLOCKING=1 {serve} --enforce-eager"),
            ("see which build fits this machine", "stoker doctor"),
        ),
    ),
    Kind(
        "processes that talk to each other",
        r"\b(?:NCCL|RCCL|HCCL|Gloo|TCPStore|rendezvous)\b|Dist\w*Error|zmq|RayTaskError",
        (r"/torch/distributed/|/ray/|parallel_state|device_communicators|shm_broadcast|/zmq/"),
        (
            ("let the library say why", "NCCL_DEBUG=INFO {serve}"),
            ("see how large the shared memory is", "df -h /dev/shm"),
            ("do without the direct all-reduce", "{serve} --disable-custom-all-reduce"),
        ),
    ),
    Kind(
        "a kernel that is compiled at run time",
        r"triton|inductor|dynamo|ptxas|nvcc|ninja|\bPTX\b|LLVM|tilelang|cutlass|deep_?gemm",
        (
            r"/triton/|/_inductor/|/_dynamo/|flashinfer/jit|/deep_gemm/|/tilelang/|/cutlass/"
            r"|aiter/jit|torch/utils/cpp_extension|/tvm"
        ),
        (
            _EAGER,
            _CACHES,
            ("use another attention backend", "{serve} --attention-backend TRITON_ATTN"),
        ),
    ),
    Kind(
        "the tokenizer or the chat template",
        r"tokeniz|sentencepiece|tiktoken|chat.?template|jinja|vocab",
        r"tokeniz|/sentencepiece/|/tiktoken/|mistral_common|/jinja2/|chat_utils",
        (
            ("take the base model's", "{serve} --tokenizer <org/base-model>"),
            ("use newer packages", "pip install -U tokenizers sentencepiece tiktoken transformers"),
        ),
    ),
    Kind(
        "the inputs other than text (images, audio, video)",
        r"image|video|audio|multi.?modal|pixel|processor",
        (r"/multimodal/|processing_\w+\.py|image_processing|/PIL/|/torchvision/|/torchaudio/"),
        (
            ("serve text alone", '{serve} --limit-mm-per-prompt \'{{"image": 0, "video": 0}}\''),
            NEWER_PACKAGES,
        ),
    ),
    Kind(
        "the quantisation of the checkpoint",
        r"quanti[sz]|\b(?:fp8|awq|gptq|marlin|nvfp4|mxfp4|int4|int8|bitsandbytes)\b",
        r"/quantization/|compressed_tensors|/bitsandbytes/|/gptqmodel/",
        (
            ("leave --quantization out", "{serve} ~--quantization"),
            ("use another checkpoint of the model", None),
            NEWER_PACKAGES,
        ),
    ),
    Kind(
        "the weights: how they are read, or how they fit into the model",
        r"safetensor|checkpoint|state_dict|weight|\bshard",
        r"model_loader|weight_utils|load_weights|weight_loader|/safetensors/|\.gguf|gguf",
        (
            ("make sure that the download is complete", "{hub_download} {repo_id}"),
            NEWER_PACKAGES,
            ("look at the files and their sizes", "ls -lh {model}"),
        ),
    ),
    Kind(
        "a file or a folder",
        r"^\S*(?:FileNotFound|Permission|IsADirectory|NotADirectory|FileExists|OS|IO)Error",
        None,
        (
            ("see who may read it, and whether it is there", "ls -l {path}"),
            ("see whether a disk is full", "df -h ~ /tmp /dev/shm"),
        ),
    ),
    Kind(
        "a setting: a flag, or the model's config.json",
        (r"config|argument|--\w|_(?:size|len|parallel)\b|must be|is not supported|Unsupported"),
        r"/config/|arg_utils|server_args|configuration_\w+\.py|model_config|/pydantic",
        (
            ("see the flags that this version knows", "{program} --help"),
            ("start with the model alone, and add the flags one by one", "{program} {model}"),
            NEWER_PACKAGES,
        ),
    ),
    Kind(
        "the model's own code in this release",
        None,
        r"model_executor/models/|srt/models/|transformers/models/|transformers_modules/",
        (
            NEWER_PACKAGES,
            ("try Transformers' own implementation", "{serve} --model-impl transformers"),
        ),
    ),
)
_PATH = re.compile(r"['\"](/[^'\"\n]{1,300})['\"]")


def _holds(words: str | None, text: str) -> bool:
    # Compiled when they are needed: few failures are unknown.
    return words is not None and compiled(words, re.IGNORECASE).search(text) is not None


def kind_of(text: str, *frames: str | None) -> Kind | None:
    """By the exception's own words first, then by the frames, the deepest first."""
    said = text[:600]
    for kind in KINDS:
        if _holds(kind.raised, said):
            return kind
    for frame in frames:
        for kind in KINDS if frame else ():
            if _holds(kind.frames, frame or ""):
                return kind
    return None


def path_in(text: str) -> str | None:
    """The first absolute path that the exception names in quotes."""
    match = _PATH.search(text[:2000])
    return match[1] if match is not None else None
