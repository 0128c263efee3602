"""Causes of family E in Python and its libraries: plugins, kernels, compilers, wrong imports."""

from __future__ import annotations

from logparse.problems.problem import ProblemRule, patterns

_CLEAR_CACHES = (
    "delete compiled leftovers of older versions",
    "rm -rf ~/.cache/vllm/torch_compile_cache ~/.triton/cache /tmp/torchinductor_$USER",
)

LIBRARY_PROBLEMS: tuple[ProblemRule, ...] = (
    ProblemRule(
        "E2",
        patterns(r"Only one platform plugin can be activated, but got: (?P<plugins>[^\n]{1,200})"),
        ("several platform plugins are installed: {plugins}",),
        "A process can serve one kind of device.",
        (
            ("choose one", "VLLM_PLUGINS=<name> {serve}"),
            ("uninstall the others", "pip list | grep -i vllm"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "E8",
        patterns(
            r"requires the CUDA flash attention extensions",
            r"No module named '(?P<module>(?:vllm\.)?(?:vllm_)?flash_attn[\w.]{0,60})'",
        ),
        ("the package {module} is missing", "the flash attention part of {server} is missing"),
        "The wheel does not fit this platform, or the model's own code imports flash-attn.",
        (
            ("use another attention backend", "{serve} --attention-backend TRITON_ATTN"),
            (
                "install {server} again, in a fresh environment",
                "uv venv && uv pip install {package} --torch-backend=auto",
            ),
            ("for code of the model itself", "pip install flash-attn --no-build-isolation"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "E16",
        patterns(
            r"DeepGEMM backend is not available",
            r"[Aa]ssertion error[^\n]{0,200}deep_gemm|deep_gemm[^\n]{0,200}[Aa]ssert",
            r"No module named 'deep_gemm'",
        ),
        ("DeepGEMM cannot be used here",),
        "It compiles kernels for Hopper and newer on first use, and needs the CUDA toolkit.",
        (
            ("do without it", "VLLM_USE_DEEP_GEMM=0 {serve}"),
            ("use other kernels for the experts", "{serve} --moe-backend triton"),
            ("name the toolkit", "export CUDA_HOME=/usr/local/cuda"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "E17",
        patterns(r"UVA is not available"),
        ("this system (WSL?) cannot share main memory with the GPU",),
        "Unified addresses are missing; the newer model runner and CPU offloading need them.",
        (
            ("use the older model runner", "VLLM_USE_V2_MODEL_RUNNER=0 {serve}"),
            ("update WSL", "wsl --update"),
            ("do without CPU offloading", "{serve} --cpu-offload-gb 0"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "E11",
        patterns(
            r"out of resource: (?P<what>[\w ]{1,40}), Required: (?P<need>\d{1,12}), Hardware "
            r"limit: (?P<limit>\d{1,12})",
            r"PTXAS error|Internal Triton PTX codegen error",
            r"BackendCompilerFailed",
            r"torch\._dynamo\.exc\.\w{1,60}",
            r"torch\._inductor\.exc\.\w{1,60}",
            r"ConstraintViolationError|Constraints violated",
            r"InductorError|LoweringException|TritonMissing|PassManager::run failed|tvm\.error\.",
            r"Failed compilation with \['neuronx-cc'|Command '\['neuronx-cc'",
            r"triton\.\w{1,30}\.errors\.\w{1,60}",
        ),
        (
            "a kernel needs {need} bytes of {what}, the GPU has {limit}",
            "a kernel could not be compiled",
        ),
        "Triton or torch.compile failed on this model and device, or on leftovers of an older "
        "version.",
        (
            _CLEAR_CACHES,
            ("do not read the cache", "VLLM_DISABLE_COMPILE_CACHE=1 {serve}"),
            ("do without compilation", "{serve} --enforce-eager"),
            ("use another attention backend", "{serve} --attention-backend TRITON_ATTN"),
        ),
    ),
    ProblemRule(
        "E14",
        patterns(
            r"An attempt has been made to start a new process before the\s{1,20}current process "
            r"has finished its bootstrapping phase",
            r"No such file or directory: '[^'\n]{0,300}(?P<stdin><stdin>)'",
        ),
        (
            "the script came by standard input ({stdin}), so the engine's processes cannot read it",
            "the script starts the engine while it is being imported",
        ),
        "Processes are spawned: each imports the script again, so the start must be guarded.",
        (('put the start below `if __name__ == "__main__":`', None),),
    ),
    ProblemRule(
        "E15",
        patterns(
            r"cannot import name '(?P<name>\w{1,80})' from (?:partially initialized module )?"
            r"'vllm[\w.]{0,80}'",
            r"partially initialized module '(?P<module>[\w.]{1,80})'",
        ),
        (
            "another file or folder stands in for the module {module}",
            "another file or folder named vllm stands in for the package ({name} is not in it)",
        ),
        "The current directory comes first when modules are looked for; a folder vllm, or a file "
        "logging.py, hides the real one.",
        (
            ("start from another directory", "cd / && {serve}"),
            ("see which one is taken", "python -c 'import vllm; print(vllm.__path__)'"),
        ),
    ),
    ProblemRule(
        "E19",
        patterns(
            r"Inconsistent GPU visibility env vars: (?P<detail>[^\n]{1,200})",
            r"Model architecture '(?P<architecture>\w{1,120})' is not supported by ROCm",
            r"No module named 'amdsmi'|libamd_smi|AmdSmi\w{0,40}Exception",
        ),
        (
            "the variables that choose the GPUs contradict each other: {detail}",
            "{architecture} cannot be run on ROCm",
            "AMD's management library does not work",
        ),
        "On ROCm one variable chooses the GPUs, and the libraries must be those of the container.",
        (
            ("set only one of them", "unset CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES"),
            ("use AMD's container of the same release", "docker run rocm/vllm ..."),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "E18",
        patterns(
            r"Not enough allowed NUMA nodes to bind threads of (?P<workers>\d{1,6})",
            r"Sparse Attention is not supported on CPU",
        ),
        (
            "there are too few NUMA nodes for {workers} CPU workers",
            "this model's attention is not made for CPUs",
        ),
        "Each rank of the CPU build wants the cores of a node of its own.",
        (
            ("name the cores, one group per rank", "VLLM_CPU_OMP_THREADS_BIND='0-7|8-15' {serve}"),
            ("do not bind threads", "VLLM_CPU_OMP_THREADS_BIND=nobind {serve}"),
            ("use one rank", "{serve} --tensor-parallel-size 1"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "E9",
        patterns(
            r"FlashInfer backend is not available",
            r"flashinfer-(?:cubin|jit-cache) version \((?P<cubin>[^)]{1,40})\) does not match "
            r"flashinfer version \((?P<flashinfer>[^)]{1,40})\)",
        ),
        (
            "the parts of FlashInfer have different versions ({cubin} and {flashinfer})",
            "FlashInfer cannot be used here",
        ),
        "Its compiled parts are packages of their own and must have its version.",
        (
            (
                "install the matching parts",
                "pip install flashinfer-cubin=={flashinfer} flashinfer-jit-cache=={flashinfer}",
            ),
            ("do without that kernel", "VLLM_USE_FLASHINFER_SAMPLER=0 {serve}"),
            ("use another attention backend", "{serve} --attention-backend FLASH_ATTN"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "E10",
        patterns(
            r"CalledProcessError: Command '\['(?P<compiler>\S{0,80}(?:cc|\+\+|clang)\S{0,20})'",
            r"InvalidCxxCompiler|CppCompileError",
        ),
        ("a small program could not be compiled ({compiler})", "a program could not be compiled"),
        "Triton and torch.compile build small programs at start; the lines above say what was "
        "missing.",
        (
            ("install the compiler and Python's headers", "sudo apt install gcc g++ python3-dev"),
            ("name the folder of libcuda", "LIBRARY_PATH=/usr/lib/x86_64-linux-gnu {serve}"),
            ("do without compilation", "{serve} --enforce-eager"),
        ),
    ),
)
