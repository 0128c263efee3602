"""Causes of families D and E: parallelism, driver, libraries and compilers."""

from __future__ import annotations

from logparse.problems.problem import ProblemRule, patterns

PARALLEL_PROBLEMS: tuple[ProblemRule, ...] = (
    ProblemRule(
        "D1",
        patterns(
            r"Total number of attention heads \((?P<heads>\d{1,9})\) must be divisible by tensor "
            r"parallel size \((?P<tp>\d{1,9})\)"
        ),
        ("{heads} attention heads cannot be divided among {tp} GPUs",),
        "Tensor parallelism gives every GPU the same number of heads.",
        (
            ("use a divisor of {heads}", "{serve} --tensor-parallel-size 2"),
            ("split by layers instead", "{serve} --pipeline-parallel-size {tp}"),
        ),
    ),
    ProblemRule(
        "D2",
        patterns(
            r"World size \((?P<world>\d{1,9})\) is larger than the number of available GPUs "
            r"\((?P<gpus>\d{1,9})\)",
            r"CUDA error: invalid device ordinal",
            r"DP adjusted local rank \d{1,9} is out of bounds",
        ),
        (
            "{world} GPUs were asked for, {gpus} are there",
            "more GPUs were asked for than there are",
        ),
        "Tensor times pipeline parallel size must not exceed the GPUs that this process may see.",
        (
            ("use what is there", "{serve} --tensor-parallel-size {gpus}"),
            ("see which GPUs are visible", "nvidia-smi -L; echo $CUDA_VISIBLE_DEVICES"),
            ("in Docker, hand them on", "docker run --gpus all ..."),
        ),
    ),
    ProblemRule(
        "D6",
        patterns(
            r"(?:NCCL|RCCL) error",
            r"DistBackendError",
            r"Duplicate GPU detected",
            r"is setting up NCCL communicator",
            r"ncclInternalError|ncclSystemError|ncclInvalidUsage|ncclRemoteError",
        ),
        ("the GPUs cannot talk to each other (NCCL)",),
        "Shared memory, blocked peer access or the wrong network interface are the usual reasons.",
        (
            ("let NCCL say why", "NCCL_DEBUG=INFO {serve}"),
            ("in Docker, give it shared memory", "docker run --shm-size=16g ..."),
            ("do without peer access", "NCCL_P2P_DISABLE=1 {serve} --disable-custom-all-reduce"),
        ),
    ),
    ProblemRule(
        "D6",
        patterns(
            r"oneCCL: (?P<detail>[^\n]{1,160})",
            r"CCL_ERROR",
            r"[Hh][Cc][Cc][Ll]\w{0,30} (?:error|fail)",
        ),
        (
            "the devices cannot talk to each other (oneCCL: {detail})",
            "the devices cannot talk to each other",
        ),
        "The collective library needs the device files, shared memory and a network interface.",
        (
            ("have it say why", "CCL_LOG_LEVEL=info {serve}"),
            (
                "in Docker, hand on devices and memory",
                "docker run --ipc=host --device /dev/dri -v /dev/dri/by-path:/dev/dri/by-path ...",
            ),
            ("exchange handles over sockets", "CCL_ZE_IPC_EXCHANGE=sockets {serve}"),
        ),
    ),
    ProblemRule(
        "D7",
        patterns(
            r"(?:^|\d )Bus error|status=7/BUS|exited with code 135\b",
            r"Failed core proc\(s\): \{[^}]{0,300}: (?:-7|135)\b",
            r"unable to (?:open|write to) (?:shared memory|file </torch)",
            r"Error while creating shared memory segment",
        ),
        ("the shared memory (/dev/shm) is too small",),
        "A container has 64 MiB of it by default.",
        (
            ("give the container more", "docker run --shm-size=16g ..."),
            ("see how much there is", "df -h /dev/shm"),
        ),
    ),
)

PLATFORM_PROBLEMS: tuple[ProblemRule, ...] = (
    ProblemRule(
        "E4",
        patterns(
            r"NVIDIA driver on your system is too old \(found version (?P<driver>\d{1,9})\)",
            r"CUDA driver version is insufficient",
            r"cudaErrorInsufficientDriver",
            r"compiled with an unsupported toolchain",
            r"unsupported display driver / cuda driver combination",
            r"forward compatibility was attempted on non supported HW",
            r"unsatisfied condition: (?P<condition>cuda>=[\d.]{1,9})",
        ),
        ("the NVIDIA driver is too old for this build",),
        "The wheels are built for a newer CUDA than the driver offers.",
        (
            ("see the driver's version", "nvidia-smi"),
            ("update the driver, or install a release built for an older CUDA", None),
        ),
    ),
    ProblemRule(
        "E3",
        patterns(
            r"Found no NVIDIA driver on your system",
            r"No CUDA GPUs are available",
            r"NVMLError_LibraryNotFound",
            r"Driver/library version mismatch",
            r"Failed to initialize NVML|NVML Shared Library Not Found",
            r"CUDA-capable device\(s\) is/are busy or unavailable",
            r"no CUDA-capable device is detected",
            r"CUDA error: (?:initialization error|system not yet initialized)",
            r"CUDA driver initialization failed",
            r"Unexpected error from cudaGetDeviceCount\(\)|NVMLError_(?:Unknown|NotSupported)",
            r"CUDA unknown error - this may be due to an incorrectly set up environment",
        ),
        ("no usable NVIDIA driver or GPU",),
        "The driver is not loaded, was updated without a restart, or is not visible in this "
        "container.",
        (
            ("see what the driver says", "nvidia-smi"),
            ("in Docker, hand the GPUs on", "docker run --gpus all ..."),
            ("after a driver update", "sudo reboot"),
        ),
    ),
    ProblemRule(
        "E1",
        patterns(
            r"Device string must not be empty",
            r"Failed to infer device type",
            r"UnspecifiedPlatform",
            r"Torch not compiled with CUDA enabled",
        ),
        ("no device was found that this build of {server} can use",),
        "A CUDA build on a machine without a visible GPU, or a build for another platform.",
        (
            ("see whether the GPU is visible here", "nvidia-smi"),
            ("in Docker, hand the GPUs on", "docker run --gpus all ..."),
            ("see which build fits this machine", "stoker doctor"),
            ("without a GPU, use our own engine", "stoker serve {model}"),
        ),
    ),
    ProblemRule(
        "E5",
        patterns(
            r"no kernel image is available|invalid device function|device kernel image is invalid",
            r"hipErrorNoBinaryForGpu|hipErrorInvalidDeviceFunction",
            r"is not compatible with the current PyTorch installation",
            r"ptxas fatal\s{1,3}: Value 'sm_",
            r"No supported CUDA architectures found|Unsupported (?:CUDA|SM|GPU) arch",
            r"FlashInfer requires GPUs with sm\d{2} or higher",
        ),
        ("this build has no code for this GPU",),
        "The GPU is older, or newer, than what the wheel was compiled for.",
        (
            ("see which build fits", "stoker doctor"),
            ("install another release, or build from source", None),
            ("on an AMD card of the same family", "HSA_OVERRIDE_GFX_VERSION=11.0.0 {serve}"),
        ),
    ),
    ProblemRule(
        "E21",
        patterns(
            r"One of GPU archs of \[(?P<archs>[^\]\n]{1,100})\] is invalid or not supported",
            r"aiter[^\n]{0,200}?(?:not supported|[Uu]nsupported|No kernel)[^\n]{0,60}?"
            r"(?P<archs>gfx\w{2,6})",
            r"(?P<archs>gfx\w{2,6})[^\n]{0,80}?(?:is not|not) supported[^\n]{0,60}?(?:aiter|AITER)",
        ),
        ("AITER has no kernels for this GPU ({archs})",),
        "AMD's tuned kernels are made for its data centre cards; the engine itself runs on others.",
        (
            ("do without them", "VLLM_ROCM_USE_AITER=0 {serve}"),
            ("do without them", "SGLANG_USE_AITER=0 {serve}"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "E9",
        patterns(r"nvcc fatal\s{0,4}: {1,4}(?P<detail>[^\n]{1,200})"),
        ("the CUDA compiler (nvcc) does not take what it is given: {detail}",),
        "A kernel is built at run time with options for another release of the compiler: nvcc is "
        "too old for the option or for the GPU.",
        (
            ("see which compiler is found", "nvcc --version; echo $CUDA_HOME"),
            ("name a newer one", "CUDA_HOME=/usr/local/cuda {serve}"),
            ("do without that kernel", "VLLM_USE_FLASHINFER_SAMPLER=0 {serve}"),
            ("take the kernels ready made", "pip install flashinfer-cubin flashinfer-jit-cache"),
        ),
    ),
    ProblemRule(
        "E7",
        patterns(
            r"undefined symbol: (?P<symbol>_Z\w{1,80})",
            r"torch_call_dispatcher\(|TORCH_ABI_VERSION",
            r"aoti_torch_\w{1,60}[^\n]{0,60}API call failed",
        ),
        ("a compiled part was built for another torch",),
        "torch was changed after {server} (or flash-attn, flashinfer) was installed.",
        (
            ("install them together again", "pip install --force-reinstall {package}"),
            ("remove a stray package", "pip uninstall flash-attn"),
        ),
    ),
    ProblemRule(
        "E6",
        patterns(
            r"(?P<library>lib[\w.+-]{1,60}\.so[\d.]{0,20}): cannot open shared object file",
            r"version `(?P<library>GLIBC(?:XX)?_[\d.]{1,20})' not found",
            r"No module named 'vllm\._C'",
            r"'_OpNamespace' '_C\w{0,20}' object has no attribute",
        ),
        (
            "the shared library {library} is missing",
            "the compiled part of {server} cannot be loaded",
        ),
        "A wheel for another CUDA than torch's, a system older than the wheel, or a source "
        "folder named "
        "vllm in the current directory.",
        (
            (
                "install into a fresh environment",
                "uv venv && uv pip install {package} --torch-backend=auto",
            ),
            ("look for mixed CUDA versions", "pip list | grep -i -E 'torch|nvidia|{package}'"),
            ("see which build fits this machine", "stoker doctor"),
        ),
    ),
    ProblemRule(
        "E9",
        patterns(
            r"Could not find nvcc|Could not find CUDA installation|nvcc_path",
            r"Ninja is required to load",
            r"No such file or directory: '(?:[^'\n]{1,200}/)?(?P<tool>nvcc|ninja)'",
            r"fatal error: (?!Python\.h)\S{1,200}: No such file or directory",
            r"Ninja build failed",
            r"CUDA_HOME environment variable is not set",
        ),
        ("a kernel must be compiled and the tools for it are missing",),
        "FlashInfer compiles some kernels on first use; it needs nvcc and ninja.",
        (
            ("do without that kernel", "VLLM_USE_FLASHINFER_SAMPLER=0 {serve}"),
            ("install the tools", "pip install ninja; export CUDA_HOME=/usr/local/cuda"),
            ("use another attention backend", "{serve} --attention-backend FLASH_ATTN"),
        ),
    ),
    ProblemRule(
        "E40",
        patterns(
            r"(?:cannot find|unable to find library) -l(?P<driver>cuda)\b",
            r"(?:cannot find|unable to find library) -l(?P<library>[\w.+-]{1,60})",
        ),
        (
            "the linker does not find the driver's library (lib{driver})",
            "the linker does not find lib{library}",
        ),
        "Kernels are built at run time and linked with it. A container or a machine without a "
        "driver has the library under another name, or in a folder that the linker is not told of.",
        (
            (
                "name the folder that holds the {driver} library",
                "LIBRARY_PATH=/usr/local/cuda/lib64/stubs:/usr/lib/x86_64-linux-gnu {serve}",
            ),
            ("see where the library is", "ldconfig -p | grep lib{library}"),
            ("do without compilation", "{serve} --enforce-eager"),
        ),
    ),
    ProblemRule(
        "E10",
        patterns(r"Failed to find C compiler", r"Python\.h: No such file"),
        ("there is no C compiler (or its headers)",),
        "Triton and torch.compile build small programs at start.",
        (
            ("install one", "sudo apt install gcc g++ python3-dev"),
            ("do without compilation", "{serve} --enforce-eager"),
        ),
    ),
    ProblemRule(
        "E12",
        patterns(
            r"(?P<what>an illegal memory access|device-side assert triggered|"
            r"unspecified launch failure)",
            r"(?P<what>CUBLAS_STATUS_\w{1,40})",
        ),
        ("a GPU computation failed ({what})",),
        "A fault in a kernel, memory that ran out in cuBLAS, or broken hardware.",
        (
            ("find the place", "CUDA_LAUNCH_BLOCKING=1 {serve} --enforce-eager"),
            ("ask the driver", "dmesg | grep -i xid"),
            ("leave more memory free", "{serve} --gpu-memory-utilization {share_down}"),
        ),
    ),
    ProblemRule(
        "E13",
        patterns(r"Cannot re-initialize CUDA in forked subprocess"),
        ("CUDA was used before the process was forked",),
        "CUDA does not survive fork.",
        (("start children afresh", "VLLM_WORKER_MULTIPROC_METHOD=spawn {serve}"),),
    ),
)
