"""Causes in the words of llama-server (family L) and SGLang (family Q)."""

from __future__ import annotations

from logparse.problems.problem import FREE_GPU, ProblemRule, patterns

_E = "llama.cpp"

# Before the rules that any program's missing library fits.
LLAMACPP_LOADER_PROBLEMS: tuple[ProblemRule, ...] = (
    ProblemRule(
        "L6",
        patterns(
            r"llama-server\S{0,20}: error while loading shared libraries: (?P<library>\S{1,80}): "
        ),
        ("the shared library {library} of llama.cpp is not found",),
        "The libraries lie in another folder than the program, or were built for another system.",
        (
            ("name their folder", "LD_LIBRARY_PATH=/path/to/llama.cpp/build/bin {serve}"),
            ("see what is missing", "ldd $(which llama-server)"),
        ),
        is_fatal=True,
        engine=_E,
    ),
)

LLAMACPP_PROBLEMS: tuple[ProblemRule, ...] = (
    ProblemRule(
        "L4",
        patterns(
            r"error: (?:invalid|unknown) argument: (?P<flag>-\S{1,100})",
            r"error: (?:invalid|unknown) argument: (?P<word>\S{1,100})",
        ),
        ("unknown flag {flag}", "the word {word} stands where a flag is expected"),
        "The command line holds a flag that this build does not know.",
        (("see the flags that this build knows", "llama-server --help"),),
        is_fatal=True,
        engine=_E,
    ),
    ProblemRule(
        "L4",
        patterns(
            r"failed to initialize router models: (?P<detail>[^\n]{1,200})",
            r"error while handling argument \"(?P<flag>[^\"]{1,100})\": (?P<detail>[^\n]{1,200})",
            r"error: (?P<detail>(?:expected value for argument|the argument|--model is required|"
            r"unable to parse)[^\n]{0,200})",
        ),
        ("{flag}: {detail}", "the command line is not valid: {detail}"),
        "A flag's value is missing or not one that it accepts.",
        (("see the flags that this build knows", "llama-server --help"),),
        is_fatal=True,
        engine=_E,
    ),
    ProblemRule(
        "L1",
        patterns(
            r"failed to open (?:GGUF )?(?:file )?'?(?P<file>[^'\n]{1,300}?\.gguf)",
            r"failed to open GGUF file '?(?P<file>[^'\n]{1,300}?)'?(?: \(|$)",
            r"gguf_init_from_file\w{0,10}: failed to open '?(?P<file>[^'\n]{1,300}?)'?(?::|$)",
            r"failed to download model from (?P<file>[^\n]{1,200})",
        ),
        ("the model file {file} cannot be opened",),
        "The path is wrong where the server runs (in Docker: inside the container), or may not be "
        "read.",
        (
            ("look whether it is there", "ls -lh {file}"),
            ("have it downloaded", "llama-server -hf <org/repo>:Q4_K_M"),
            ("list what is in the cache", "stoker models list"),
        ),
        is_fatal=True,
        engine=_E,
    ),
    ProblemRule(
        "L2",
        patterns(
            r"invalid magic (?:characters|number)(?::? '?(?P<magic>[^'\n]{0,16}))?",
            r"unknown \(magic, version\) combination: (?P<magic>\w{1,16})",
            r"(?P<detail>is not within the file bounds|model is corrupted or incomplete|"
            r"failed to read (?:tensor info|key-value pairs|header|magic))",
        ),
        (
            "the model file is no GGUF file (it begins with '{magic}')",
            "the model file is damaged or incomplete",
        ),
        "The download broke off, a web page or a git-lfs pointer was saved instead, or the file "
        "has another format (safetensors).",
        (
            ("look at its size and its beginning", "ls -lh {model}; head -c 4 {model}"),
            ("download it again", "llama-server -hf <org/repo>:Q4_K_M"),
            ("convert safetensors", "python convert_hf_to_gguf.py /path/to/model"),
        ),
        is_fatal=True,
        engine=_E,
    ),
    ProblemRule(
        "L5",
        patterns(
            r"unknown model architecture: '(?P<architecture>[^']{1,100})'",
            r"unknown pre-tokenizer type: '(?P<tokenizer>[^']{1,100})'",
            r"missing tensor '(?P<tensor>[^']{1,200})'",
            r"tensor '(?P<tensor>[^']{1,200})' has wrong shape",
            r"wrong number of tensors",
            r"key not found in model: (?P<key>\S{1,200})",
        ),
        (
            "this build does not know the architecture {architecture}",
            "this build does not know the tokenizer {tokenizer}",
            "the file's tensor {tensor} is not what this build expects",
            "the file lacks {key}",
            "the file does not match this build",
        ),
        "The model is newer than the build, or was converted by another version.",
        (
            ("use a newer llama.cpp", "llama-server --version"),
            ("use a newer conversion of the model", None),
        ),
        is_fatal=True,
        engine=_E,
    ),
    ProblemRule(
        "L3",
        patterns(
            r"allocating (?P<wanted>[\d.]{1,14} MiB) on device (?P<device>\d{1,3}): cudaMalloc "
            r"failed",
            r"failed to allocate (?P<buffer>\S{1,40}) buffer of size (?P<bytes>\d{1,15})",
            r"unable to allocate (?P<buffer>\S{1,40}) buffer",
            r"failed to allocate (?:buffer for kv cache|compute (?:pp )?buffers|buffer, size)",
            r"ErrorOutOfDeviceMemory|Device memory allocation of size \d{1,15} failed",
            r"(?:ggml_|llama_)[^\n]{0,200}out of memory",
            r"Insufficient Memory \([^)\n]{0,80}OutOfMemory",
        ),
        (
            "the memory of device {device} is used up (another {wanted} were wanted)",
            "there is no memory for a buffer on {buffer}",
            "the memory is used up",
        ),
        "Weights, KV cache and work space together do not fit; the context takes a share that "
        "grows with its length.",
        (
            ("use a shorter context", "{serve} --ctx-size {len_half}"),
            ("keep some layers in main memory", "{serve} --n-gpu-layers 20"),
            (
                "store the KV cache in 8 bits",
                "{serve} --flash-attn on --cache-type-k q8_0 --cache-type-v q8_0",
            ),
            ("use a smaller quantisation (Q4_K_M)", None),
            FREE_GPU,
        ),
        is_fatal=True,
        engine=_E,
    ),
    ProblemRule(
        "L8",
        patterns(
            r"GGML_ASSERT\((?P<what>[^\n]{1,200})\) failed",
            r"^(?:CUDA|ROCm|HIP|MUSA|SYCL|Vulkan) error: (?P<what>[^\n]{1,100})",
            r"vk::\S{1,60}: (?P<what>Error\w{1,40})",
        ),
        ("a check or a device call inside llama.cpp failed: {what}",),
        "A driver that does not fit, a device in use by others, or a fault of this build.",
        (
            ("see the devices that it finds", "llama-server --list-devices"),
            ("see what else holds the GPU", "nvidia-smi"),
            ("try without the device", "{serve} --n-gpu-layers 0"),
            ("use a newer llama.cpp", "llama-server --version"),
        ),
        is_fatal=True,
        engine=_E,
    ),
    ProblemRule(
        "L13",
        patterns(
            r"invalid value for main_gpu: (?P<given>-?\d{1,4}) \(available devices: "
            r"(?P<number>\d{1,4})\)"
        ),
        ("--main-gpu {given} was asked for, and {number} devices are there",),
        "Devices count from 0. None are there when the build has no code for the GPU, or the "
        "container or CUDA_VISIBLE_DEVICES hides it.",
        (
            ("see the devices that it finds", "llama-server --list-devices"),
            ("see what the driver says", "nvidia-smi"),
            ("leave the flag out", "{serve}"),
        ),
        is_fatal=True,
        engine=_E,
    ),
    ProblemRule(
        "L10",
        patterns(
            r"V cache (?:quantization )?(?:was )?(?:requested,? )?[^\n]{0,40}requires? "
            r"(?:flash_attn|Flash Attention)"
        ),
        ("a quantised V cache needs flash attention",),
        "--cache-type-v with a quantised type is only computed by the flash attention kernels.",
        (
            ("switch it on", "{serve} --flash-attn on --cache-type-v q8_0"),
            ("leave the V cache as it is", "{serve} --cache-type-v f16"),
        ),
        is_fatal=True,
        engine=_E,
    ),
    ProblemRule(
        "L11",
        patterns(
            r"built without (?P<what>CURL|SSL|OpenSSL)",
            r"(?P<what>HTTPS) is not supported\. Please rebuild",
            r"error from HF API, response code: (?P<code>\d{3})",
        ),
        (
            "this build cannot download (it is without {what})",
            "the hub answered {code} when the model was asked for",
        ),
        "-hf and --model-url download the file at start.",
        (
            ("download it otherwise", "hf download <org/repo> --include '*.gguf'"),
            ("for a gated repository, log in", "hf auth login"),
        ),
        is_fatal=True,
        engine=_E,
    ),
    ProblemRule(
        "L12",
        patterns(r"chat template is not supported|[Ff]ailed to parse (?:the )?chat template"),
        ("the model's chat template is not one that this build reads",),
        "Templates are programs (Jinja); old builds knew some by heart.",
        (
            ("have templates run", "{serve} --jinja"),
            ("use a newer llama.cpp", "llama-server --version"),
            ("give a template", "{serve} --chat-template chatml"),
        ),
        is_fatal=True,
        engine=_E,
    ),
    ProblemRule(
        "L6",
        patterns(r"no backends are loaded"),
        ("llama.cpp's compute libraries were not found",),
        "The libggml-*.so files must lie beside the program.",
        (("see what is found", "llama-server --list-devices"),),
        is_fatal=True,
        engine=_E,
    ),
    ProblemRule(
        "L9",
        patterns(
            r"unknown projector type: (?P<projector>[\w.-]{1,60})",
            r"clip_\w{1,20}: [^\n]{0,400}?unable to find tensor (?P<tensor>\S{1,200})",
            r"[Ff]ailed to load (?:CLIP model|multimodal model|mmproj)",
            r"mmproj[^\n]{0,200}?(?:mismatch|does not match|not compatible)",
        ),
        (
            "this build does not know the projector type {projector} of the mmproj file",
            "the mmproj file lacks the tensor {tensor}",
            "the mmproj file cannot be loaded",
        ),
        "The projector for images or audio is a file of its own; it is newer than the build, "
        "belongs to another model, or is damaged.",
        (
            ("serve text alone", "{serve} --no-mmproj"),
            ("take the mmproj file from the same repository as the model", None),
            ("use a newer llama.cpp", "llama-server --version"),
        ),
        is_fatal=True,
        engine=_E,
    ),
    ProblemRule(
        "L7",
        patterns(
            r"(?:error loading model|failed to load model)(?:: |, | )(?P<detail>[^\n]{1,200})",
            r"exiting due to model loading error",
        ),
        ("the model cannot be loaded: {detail}", "the model cannot be loaded"),
        "The lines above it say what was wrong with the file.",
        (
            ("look whether the file is there and whole", "ls -lh {model}"),
            ("have more said", "{serve} --verbose"),
        ),
        is_fatal=True,
        is_echo=True,
        engine=_E,
    ),
)

_CAPTURE = r"Capture [\w ]{0,40}graph failed:\s{1,3}"

SGLANG_PROBLEMS: tuple[ProblemRule, ...] = (
    ProblemRule(
        "Q1",
        patterns(
            r"Not enough memory[.;:,]? ?(?:Please )?try to increase --mem-fraction-static",
            r"Not enough memory[^\n]{0,200}--mem-fraction-static",
        ),
        ("no memory is left for the KV cache",),
        "Weights use up the share that --mem-fraction-static gives to weights and KV cache.",
        (
            ("give them more of the memory", "{serve} --mem-fraction-static {fraction_up}"),
            ("capture fewer CUDA graphs", "{serve} --cuda-graph-max-bs 8"),
            ("spread the model over {more_gpus} GPUs", "{serve} --tp-size {more_gpus}"),
        ),
        is_fatal=True,
        engine="sglang",
    ),
    ProblemRule(
        "Q4",
        patterns(
            _CAPTURE + r"(?P<detail>[^\n]{0,300}?(?:no kernel image|not compatible with|"
            r"[Uu]nsupported (?:arch|GPU|SM|max_mma)|requires? (?:sm_?|compute capability)|"
            r"invalid device function)[^\n]{0,200})"
        ),
        ("a kernel that is used has no code for this GPU: {detail}",),
        "The GPU is older, or newer, than what this kernel was compiled for; memory is not the "
        "matter, though the message names it among possible solutions.",
        (
            (
                "use kernels that are built on this machine",
                "{serve} --attention-backend triton --sampling-backend pytorch",
            ),
            ("see which build fits this machine", "stoker doctor"),
        ),
        is_fatal=True,
        engine="sglang",
    ),
    ProblemRule(
        "Q2",
        patterns(_CAPTURE + r"(?P<detail>[^\n]{0,300}?[Oo]ut ?[Oo]f ?[Mm]emory[^\n]{0,200})"),
        ("CUDA graphs could not be captured: {detail}",),
        "Graphs are made after the KV cache has taken its share.",
        (
            ("leave more memory free", "{serve} --mem-fraction-static {fraction_down}"),
            ("capture fewer", "{serve} --cuda-graph-max-bs 8"),
            ("do without CUDA graphs", "{serve} --disable-cuda-graph"),
        ),
        is_fatal=True,
        engine="sglang",
    ),
    ProblemRule(
        "Q5",
        patterns(_CAPTURE + r"(?P<detail>[^\n]{1,300})"),
        ("CUDA graphs could not be captured: {detail}",),
        "Capturing runs each kernel once, so what fails here would fail in the first request.",
        (
            ("see whether it runs without graphs", "{serve} --disable-cuda-graph"),
            ("use another attention backend", "{serve} --attention-backend triton"),
            ("find the place", "CUDA_LAUNCH_BLOCKING=1 {serve} --disable-cuda-graph"),
        ),
        is_fatal=True,
        engine="sglang",
    ),
    ProblemRule(
        "Q6",
        patterns(
            r"max_mamba_cache_size=(?P<states>\d{1,9})[^\n]{0,200}?max_num_reqs=(?P<requests>\d{1,9})",
        ),
        ("the {states} states of the linear layers that fit leave room for {requests} requests",),
        "Linear layers keep a state for each request, and it shares --mem-fraction-static with "
        "the KV cache.",
        (
            ("give both more of the memory", "{serve} --mem-fraction-static {fraction_up}"),
            ("serve shorter sequences", "{serve} --context-length {len_half}"),
            ("do without CUDA graphs", "{serve} --disable-cuda-graph"),
        ),
        is_fatal=True,
        engine="sglang",
    ),
    ProblemRule(
        "Q3",
        patterns(r"[Tt]he memory capacity is unbalanced"),
        ("another process holds memory on one of the GPUs",),
        "All ranks need the same free memory.",
        (FREE_GPU, ("go on all the same", "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK=0 {serve}")),
        is_fatal=True,
        engine="sglang",
    ),
)
