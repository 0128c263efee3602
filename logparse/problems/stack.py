"""Causes of families E and C where GPU, toolkit, kernels and packages do not fit each other."""

from __future__ import annotations

from logparse.problems.problem import ASK_CLI, NEWER_PACKAGES, ProblemRule, patterns

_FRESH = (
    "install into a fresh environment",
    "uv venv && uv pip install {package} --torch-backend=auto",
)
_TOOLKIT = ("see which compiler is found", "nvcc --version; echo $CUDA_HOME")
_NO_SAMPLER = ("do without FlashInfer's sampler", "VLLM_USE_FLASHINFER_SAMPLER=0 {serve}")
_TRANSFORMERS_5 = (
    "Names and types changed in Transformers 5, which vLLM serves with from 0.19.1 on. Older "
    "releases of it set no upper limit, and pip takes the newest."
)
_OLDER_TRANSFORMERS = (
    ("go back to Transformers 4", "pip install 'transformers<5'"),
    ("use a release that knows Transformers 5", "pip install -U {package}"),
    ("see what does not fit together", "pip check"),
)
_TRITON = ("use another attention backend", "{serve} --attention-backend TRITON_ATTN")

STACK_PROBLEMS: tuple[ProblemRule, ...] = (
    ProblemRule(
        "E22",
        patterns(
            r"SM (?P<sm>[\d.x]{1,8}) requires CUDA >= (?P<cuda>[\d.]{1,8})",
            r"[Rr]equires CUDA (?:version )?(?:>=|at least) ?(?P<cuda>[\d.]{1,8})",
        ),
        (
            "kernels for this GPU (SM {sm}) are compiled with CUDA {cuda} or newer, and the "
            "toolkit here is older",
            "the CUDA toolkit here is older than {cuda}",
        ),
        "Kernels that are built at run time use the toolkit of the machine, not the one that torch "
        "brings.",
        (
            _TOOLKIT,
            ("name a newer toolkit", "CUDA_HOME=/usr/local/cuda {serve}"),
            _NO_SAMPLER,
            _TRITON,
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "E23",
        patterns(
            r"ptxas fatal\s{1,6}: Value '(?P<arch>sm_\w{1,8})' is not defined",
            r"PTXAS error: Internal Triton PTX codegen error[\s\S]{0,400}?'(?P<arch>sm_\w{1,8})'",
        ),
        ("the assembler that Triton brings (ptxas) does not know this GPU ({arch})",),
        "The GPU is newer than the ptxas in the Triton package; the one of a newer CUDA toolkit "
        "knows it.",
        (
            (
                "use the toolkit's own",
                "TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas {serve}",
            ),
            ("use newer packages", "pip install -U triton torch {package}"),
            ("see which build fits this machine", "stoker doctor"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "E24",
        patterns(
            r"operator (?P<what>torch\w{1,20}::\w{1,60}) does not exist",
            r"undefined symbol: (?P<what>(?!_Z)\w{1,100})",
            r"(?<!initialized )module '(?P<what>(?:torch|numpy|triton)[\w.]{0,60})' has no attr",
            r"(?P<what>Numpy) is not available|(?P<numba>Numba needs NumPy [\d.]{1,8} or less)",
            r"A module that was compiled using (?P<what>NumPy [\d.x]{1,8}) cannot be run in",
            r"'_OpNamespace' '(?P<what>_(?!C')\w{1,20})' object has no attribute",
            r"No module named '(?P<what>sgl_kernel|triton_kernels)[\w.]{0,60}'",
            r"[Ff]ailed to load the backend extension: (?P<what>\S{1,60})",
        ),
        (
            "packages of different builds are mixed ({what})",
            "packages of different builds are mixed ({numba})",
        ),
        "torch, NumPy, Triton and the compiled parts of {server} must be of releases that were "
        "built for each other; one was installed or updated alone.",
        (("see what does not fit together", "pip check"), _FRESH),
    ),
    ProblemRule(
        "C25",
        patterns(
            r"(?P<what>\w{0,60}Tokenizer\w{0,20}) has no attribute "
            r"(?P<name>all_special_tokens_extended)"
        ),
        ("the installed Transformers is too new for this {server} ({what} lacks {name})",),
        _TRANSFORMERS_5,
        _OLDER_TRANSFORMERS,
    ),
    ProblemRule(
        "C25",
        patterns(r"unsupported operand type\(s\) for \|: 'list' and 'set'"),
        ("the installed Transformers is too new for this {server}",),
        _TRANSFORMERS_5,
        _OLDER_TRANSFORMERS,
        functions=frozenset({"convert_rope_params_to_dict"}),
    ),
    ProblemRule(
        "C22",
        patterns(
            r"'(?P<what>\w{0,60}Tokenizer\w{0,20})' object has no attribute '(?P<name>\w{1,60})'",
            r"'(?P<what>\w{1,60}Config)' object has no attribute '(?P<name>\w{1,60})'",
            r"cannot import name '(?P<name>\w{1,80})' from '(?P<what>transformers[\w.]{0,80})'",
            r"Tokenizer class (?P<what>\w{1,80}) does not exist",
            r"Failed to import (?P<what>transformers[\w.]{0,100})",
            r"Unrecognized configuration class <class '[\w.]{0,120}?(?P<what>\w{1,80})'>",
        ),
        (
            "the installed Transformers is another than this {server} needs ({what} lacks {name})",
            "the installed Transformers is another than the model or this {server} needs ({what})",
        ),
        "Names move between releases of Transformers; model, {server} and Transformers must know "
        "the same.",
        (
            (
                "install the release that {server} asks for",
                "pip install --force-reinstall {package}",
            ),
            NEWER_PACKAGES,
            ("see what does not fit together", "pip check"),
        ),
    ),
    ProblemRule(
        "C6",
        patterns(r"(?P<what>No model architectures are specified)"),
        ("config.json names no architecture",),
        "It is the config.json of something else than a whole model (an adapter, a part of a "
        "pipeline), or it is damaged.",
        (
            ("look what it says", "head -c 600 {model}/config.json"),
            ("use the folder or repository of the language model itself", None),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "C21",
        patterns(
            r"FP8 quantization is only supported on (?P<needs>[^\n]{1,100})",
            r"torch\._scaled_mm is only supported on (?P<needs>[^\n]{1,120})",
            r"No compiled (?P<kernel>\w{1,60})(?: for CUDA device capability: (?P<sm>\d{2,3}))?",
            r"(?P<kernel>cutlass_\w{1,60}) not compiled",
            r"No compiled (?P<kernel>nvfp4|mxfp4)[^\n]{0,60}kernel",
            r"^RuntimeError: (?P<kernel>Error Internal)$",
            r"(?P<kernel>\w{1,40}[Mm]arlin\w{0,40}) (?:is not supported|does not support)",
        ),
        (
            "the checkpoint's number format needs {needs}",
            "this build has no kernel {kernel} for this GPU (compute capability {sm})",
            "this build has no kernel for the checkpoint's number format here ({kernel})",
        ),
        "Eight and four bit formats are computed by kernels that exist for some GPUs only.",
        (
            ("use a checkpoint in a format for this GPU (AWQ, GPTQ, bfloat16)", None),
            ("use a newer release", "pip install -U {package}"),
            ("see which build fits this machine", "stoker doctor"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "C12",
        patterns(
            r"[Ff]ound unknown quantization_method=(?P<method>[\w-]{1,60})",
            r"Invalid quantization method: (?P<method>[\w-]{1,60})",
            r"(?P<method>BitAndBytes|BitsAndBytes) with TP or PP is not supported",
            r"Model \w{1,80} does not support (?P<method>BitsAndBytes) quantization",
        ),
        ("the quantisation {method} does not go with this model or layout",),
        "The method is given by the checkpoint itself, and not every model and layout can do it.",
        (
            ("leave --quantization out", "{serve} ~--quantization"),
            ("use one GPU", "{serve} --tensor-parallel-size 1"),
            NEWER_PACKAGES,
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "C23",
        patterns(
            r"(?P<what>rope_scaling)`? (?:must|should) [^\n]{1,100}",
            r"KeyError: '(?P<what>rope_type|rope_theta)'",
            r"(?P<what>rope_scaling) factor must be",
            r"Unknown RoPE scaling type (?P<what>\S{1,40})",
        ),
        ("the rotary settings in config.json are not understood ({what})",),
        "Releases of Transformers name these settings differently (type, rope_type; rope_scaling, "
        "rope_parameters).",
        (
            NEWER_PACKAGES,
            (
                "write them as this release wants them",
                "{serve} --hf-overrides '{{\"rope_scaling\": null}}'",
            ),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "C16",
        patterns(
            r"[Hh]ead size (?P<head>\d{1,5}) is not supported by (?P<backend>\w{1,40})",
            r"(?P<backend>FlashAttention)[^\n]{0,20} only supports head dimension",
            r"(?P<backend>FlashAttention) only supports Ampere",
            r"(?P<backend>FlashAttention) on [\w/ ]{1,40} only supports",
            r"(?P<backend>KV4 \w{1,10}) expects attention_backend to be one of",
            r"Unsupported (?P<backend>FA) version|Cannot use (?P<backend2>FlashAttention-\d)",
            r"(?P<backend>FlashAttention2) is not installed",
        ),
        (
            "{backend} does not do heads of {head} values",
            "{backend} does not go with this GPU or model",
            "{backend2} does not go with this GPU or model",
        ),
        "Each attention backend is made for some GPUs and head sizes.",
        (
            ("let the server choose", "{serve} ~--attention-backend"),
            ("use the most general one", "{serve} --attention-backend TRITON_ATTN"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "E25",
        patterns(r"invalid literal for int\(\) with base 10: '(?P<uuid>(?:GPU|MIG)-[\w-]{1,60})"),
        ("CUDA_VISIBLE_DEVICES names a GPU by {uuid}, and this release wants a number",),
        "Some parts read the variable as numbers.",
        (
            ("name it by its number", "CUDA_VISIBLE_DEVICES=0 {serve}"),
            ("see the numbers", "nvidia-smi -L"),
            ("use a newer release", "pip install -U {package}"),
        ),
    ),
    ProblemRule(
        "E26",
        patterns(
            r"Error 802: (?P<what>system not yet initialized)",
            r"CUDA error: (?P<what>system not yet initialized)",
        ),
        ("the GPUs of this machine are not ready: {what}",),
        "On machines with NVSwitch the fabric manager must run, and be of the driver's version.",
        (
            ("start it", "sudo systemctl start nvidia-fabricmanager"),
            ("see what it says", "nvidia-smi -q | grep -i -A2 fabric"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "E28",
        patterns(
            r"Could not run '(?P<operation>\S{1,80})' with arguments from the "
            r"'(?P<backend>\w{1,20})' backend"
        ),
        ("the operation {operation} is not built for {backend}",),
        "The build is for another kind of device than the one that is used.",
        (("see which build fits this machine", "stoker doctor"), _FRESH),
    ),
    ProblemRule(
        "E16",
        patterns(
            r"DeepGemm requires (?P<needs>[^\n]{1,60})",
            r"Assertion error \(?\S{0,200}csrc/(?:jit|apis|jit_kernels)/[^\n]{1,200}",
        ),
        ("DeepGEMM cannot be used here: it needs {needs}", "DeepGEMM cannot be used here"),
        "It compiles kernels for Hopper and newer on first use, and needs the CUDA toolkit.",
        (
            ("do without it", "VLLM_USE_DEEP_GEMM=0 {serve}"),
            ("do without it", "SGLANG_ENABLE_JIT_DEEPGEMM=0 {serve}"),
            ("name the toolkit", "export CUDA_HOME=/usr/local/cuda"),
        ),
    ),
    ProblemRule(
        "B12",
        patterns(r"certificate verify failed|CERTIFICATE_VERIFY_FAILED|SSLCertVerificationError"),
        ("the certificate of the hub (or of a proxy before it) is not trusted here",),
        "A proxy that looks into TLS, or a machine without up to date root certificates.",
        (
            ("name the proxy's certificate", "SSL_CERT_FILE=/path/ca.pem {serve}"),
            ("serve what is in the cache", "HF_HUB_OFFLINE=1 {serve}"),
            ("update the root certificates", "pip install -U certifi"),
        ),
    ),
    ProblemRule(
        "C24",
        patterns(
            r"GPU memory utilization must be less than 1\.0\. Got (?P<given>[\d.]{1,12})",
            r"gpu_memory_utilization\W{1,4}must be [^\n]{0,60}?got (?P<given>[\d.]{1,12})",
        ),
        ("--gpu-memory-utilization {given} is no share",),
        "It is the part of the GPU's memory that the server may use: more than 0, at most 1.",
        (("give a share", "{serve} --gpu-memory-utilization 0.9"), ASK_CLI),
        is_fatal=True,
    ),
    ProblemRule(
        "C15",
        patterns(
            r"[Ss]peculative decoding (?P<with>[^\n]{0,80}?) ?is not supported(?: yet)?",
            r"num_speculative_tokens must be set",
            r"Model does not support (?P<method>EAGLE3) interface",
            r"(?P<method>eagle3|extract_hidden_states|dflash) is only supported for "
            r"[^\n]{0,400}? models",
        ),
        (
            "speculative decoding {with} is not supported",
            "speculative decoding by {method} does not go with this model",
            "num_speculative_tokens is not set",
        ),
        "Not every method goes with every release, model and layout.",
        (
            ("do without it", "{serve} ~--speculative-config"),
            (
                "guess from the prompt",
                '{serve} --speculative-config \'{{"method":"ngram",'
                '"num_speculative_tokens":3,"prompt_lookup_max":4}}\'',
            ),
        ),
        is_fatal=True,
    ),
)
