"""Every entry of the list of known failures, as the servers word it, in each era's line format."""

from __future__ import annotations

import pytest

from logparse import LogReport, Outcome, Problem, parse_lines
from tests.logparse.vllm_lines import VERSION, WRAPPER

ARGS = "INFO 10-03 12:00:00 [a.py:1] non-default args: {'model': 'o/m', 'port': 8000}"


def in_core(lines: list[str]) -> list[str]:
    head = "(EngineCore_DP0 pid=2) ERROR 10-03 12:00:05 [core.py:9] "
    return [head + "EngineCore failed to start.", *(head + line for line in lines)]


def in_worker(lines: list[str]) -> list[str]:
    head = "(Worker_TP1 pid=3) ERROR 10-03 12:00:04 [multiproc_executor.py:9] "
    follow = ["Traceback (most recent call last):", '  File "/v/x.py", line 3, in wait_for_ready',
              "Exception: WorkerProc initialization failed due to an exception in a background "
              "process. See stack trace for root cause."]  # fmt: skip
    return [
        head + "WorkerProc failed to start.", *(head + line for line in lines), *in_core(follow),
    ]  # fmt: skip


def in_old_engine(lines: list[str]) -> list[str]:
    head = "ERROR 10-03 12:00:05 engine.py:366] "
    wrapper = "RuntimeError: Engine process failed to start. See stack trace for the root cause."
    return [*(head + line for line in lines), "Traceback (most recent call last):",
            '  File "/v/x.py", line 3, in run_server', wrapper]  # fmt: skip


def uncaught(lines: list[str]) -> list[str]:
    return ["Process SpawnProcess-1:", *lines]


def by_torch(lines: list[str]) -> list[str]:
    return [f"[rank0]: {line}" for line in lines]


ERAS = (in_core, in_worker, in_old_engine, uncaught, by_torch)


def report_of(error: str, functions: tuple[str, ...], era: object) -> LogReport:
    assert callable(era)
    frames = [f'  File "/v/x.py", line 3, in {name}' for name in functions or ("main",)]
    lines = ["Traceback (most recent call last):", *frames, *error.split("\n")]
    return parse_lines([VERSION, ARGS, *era(lines), "Traceback (most recent call last):",
                        '  File "/v/y.py", line 4, in serve', WRAPPER])  # fmt: skip


def problem_of(error: str, functions: tuple[str, ...], era: object) -> Problem:
    report = report_of(error, functions, era)
    assert report.outcome is Outcome.FAILED
    assert report.problem is not None
    return report.problem


# (id, what was raised, a part of the title, one of the commands)
CASES: list[tuple[str, str, str, str]] = [
    (
        "A11",
        "ValueError: Cannot auto-fit max_model_len: not enough GPU memory available to serve even "
        "a single token. x",
        "no length fits",
        "vllm serve o/m --gpu-memory-utilization 0.95",
    ),
    (
        "A14",
        "ValueError: KV connector Nixl is incompatible with "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True unless x",
        "allocator",
        "unset PYTORCH_CUDA_ALLOC_CONF",
    ),
    ("A14", "AssertionError: Expandable segments are not compatible with memory pool.",
     "allocator", "unset PYTORCH_CUDA_ALLOC_CONF"),
    ("A14", "ValueError: Sleep mode is not supported on current platform.",
     "allocator", "vllm serve o/m"),
    (
        "B11",
        "ValueError: To load a model from object storage (S3/GCS/Azure), 'load_format' must be x",
        "object storage",
        "vllm serve o/m --load-format runai_streamer",
    ),
    (
        "B2",
        "ValueError: Invalid repository ID or local directory specified: 'o/m'. Please verify",
        "no model o/m",
        "hf auth login",
    ),
    ("B3", "huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach x: offline mode is enabled",
     "cannot be reached", "hf download o/m"),
    ("B3", "requests.exceptions.ConnectionError: (MaxRetryError('Max retries exceeded with url: x",
     "cannot be reached", "hf download o/m"),
    ("B5", "RuntimeError: Data processing error: CAS: No space left on device (os error 28)",
     "disk is full", "HF_HOME=/big/disk vllm serve o/m"),
    ("B6", "FileNotFoundError: Weight files referenced in index but missing: {'a.safetensors'}",
     "damaged", "hf download --force-download o/m"),
    ("B9", "ValueError: Following weights were not initialized from checkpoint: {'a.b'}",
     "does not match", "pip install -U vllm transformers"),
    (
        "C1",
        "ValueError: Model architectures ['FooModel'] was supported in vLLM until v0.9.2, and is "
        "not supported anymore. x",
        "FooModel",
        "vllm serve o/m --model-impl transformers",
    ),
    ("C1", "ValueError: The Transformers implementation of 'FooModel' is not compatible with vLLM.",
     "FooModel", "pip install -U vllm transformers"),
    (
        "C3",
        "ImportError: Support for Transformers v4 is deprecated and was removed in vLLM v0.24.0. x",
        "too old",
        "pip install -U vllm transformers",
    ),
    (
        "C8",
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
        "  Value error, max_model_len must be a positive integer, got -5. [type=value_error]",
        "--max-model-len is not a positive number",
        "vllm serve o/m --max-model-len 32768",
    ),
    ("C9", "ValueError: max_num_batched_tokens (64) must be greater than or equal to max_num_seqs "
     "(256).", "64 tokens", "vllm serve o/m --max-num-seqs 64"),
    ("C9", "ValueError: long_prefill_token_threshold (9000) cannot be greater than the "
     "max_model_len (4096).", "9000",
     "vllm serve o/m --long-prefill-token-threshold 4096"),
    ("C10", "ValueError: This model does not support `--runner generate`.",
     "--runner generate", "vllm serve o/m --runner auto"),
    ("C10", "ValueError: This model does not support `--runner pooling`. You can pass "
     "`--convert embed` to adapt it", "--runner pooling",
     "vllm serve o/m --runner pooling --convert embed"),
    ("C11", "ValueError: The model type 'gemma2' does not support float16. Reason: x",
     "gemma2", "vllm serve o/m --dtype float32"),
    ("C11", "ValueError: torch.bfloat16 is not supported for quantization method awq. Supported "
     "dtypes: [torch.float16]", "awq", "vllm serve o/m --dtype float16"),
    ("C12", "ValueError: The quantization method fp8 is not supported for the current GPU. Minimum "
     "capability: 89. Current capability: 75.", "fp8", "vllm serve o/m"),
    ("C13", "ValueError: Weight input_size_per_partition = 4608 is not divisible by min_thread_k = "
     "128. x", "slices", "vllm serve o/m --tensor-parallel-size 1"),
    ("C14", "ValueError: You must set `--enable-mm-embeds` to input `image_embeds`",
     "embeddings", "vllm serve o/m --enable-mm-embeds"),
    ("C14", "ImportError: libGL.so.1: cannot open shared object file: No such file or directory",
     "libGL.so.1", "sudo apt install libgl1 libglib2.0-0"),
    ("C15", "ValueError: num_speculative_tokens:5 must be divisible by n_predict=2",
     "groups of 2", "vllm serve o/m --speculative-config '{\"num_speculative_tokens\": 2 }'"),
    ("C15", "ValueError: Unsupported speculative method: 'foo'", "foo", "vllm serve o/m"),
    ("C15", "ValueError: A speculative model was provided, but `num_speculative_tokens` was not "
     "provided", "not complete", "vllm serve o/m"),
    ("C16", "ValueError: Unknown attention backend: 'FOO'. Valid options are: x",
     "FOO", "vllm serve o/m"),
    ("C17", "ValueError: CUDAGraphMode.FULL is not supported with FlexAttention backend "
     "(support:NEVER) ; please try cudagraph_mode=PIECEWISE", "FULL",
     "vllm serve o/m -cc.cudagraph_mode=PIECEWISE"),
    ("C17", "ValueError: customized max_cudagraph_capture_size(=64) should be consistent with the "
     "max value of cudagraph_capture_sizes(=32)", "contradict", "vllm serve o/m --enforce-eager"),
    ("C18", "ValueError: nvfp4 KV cache is not supported with MLA x", "nvfp4", "vllm serve o/m"),
    ("C18", "ValueError: Hybrid KV cache manager was explicitly enabled but is not supported in "
     "this configuration. x", "option of the KV cache", "vllm serve o/m"),
    ("D1", "AssertionError: 49152 is not divisible by 7", "49152",
     "vllm serve o/m --pipeline-parallel-size 7"),
    ("D2", "AssertionError: DP adjusted local rank 4 is out of bounds for 4 devices", "more GPUs",
     "nvidia-smi -L; echo $CUDA_VISIBLE_DEVICES"),
    ("D3", "NotImplementedError: Pipeline parallelism is not supported for this model. x",
     "by layers", "vllm serve o/m --pipeline-parallel-size 1"),
    ("D4", "ValueError: tp_size=4 must be divisible by dcp_size=3.", "3 context slices",
     "vllm serve o/m --tensor-parallel-size 3"),
    ("D4", "ValueError: Decode context parallelism for GQA/MQA requires `--tensor-parallel-size` x",
     "context", "vllm serve o/m --decode-context-parallel-size 1"),
    ("D5", "ImportError: Failed to import Ray: No module named 'ray'. Please install Ray with "
     "`pip install ray`.", "Ray", "pip install ray"),
    ("D5", "ValueError: Cannot provide a placement group requiring 16 GPUs (x) within 1800 "
     "seconds. x", "16 GPUs", "ray status"),
    ("D5", "RuntimeError: Every node should have a unique IP address. Got 2 nodes x", "2 Ray nodes",
     "export VLLM_HOST_IP=<ip of this node>"),
    ("D6", "torch.distributed.DistBackendError: NCCL error in: x.cpp:9, ncclSystemError",
     "NCCL", "NCCL_DEBUG=INFO vllm serve o/m"),
    ("D7", "RuntimeError: unable to open shared memory object </torch_1> in read-write mode",
     "/dev/shm", "docker run --shm-size=16g ..."),
    ("D8", "RuntimeError: Failed: Cuda error /v/csrc/custom_all_reduce.cuh:453 'invalid argument'",
     "invalid argument", "vllm serve o/m --disable-custom-all-reduce"),
    ("D9", "torch.distributed.DistNetworkError: The server socket has failed to listen on any "
     "local network address. port: 29500, useIpv6: false, name: EADDRINUSE", "29500",
     "VLLM_PORT=29511 vllm serve o/m"),
    ("D9", "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 "
     "clients joined.", "1/2", "VLLM_HOST_IP=<ip> vllm serve o/m"),
    ("D9", "zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:5555')",
     "tcp://127.0.0.1:5555", "VLLM_PORT=29511 vllm serve o/m"),
    ("D10", "RuntimeError: Configuration mismatch detected for engine 1. All DP workers must have "
     "identical configurations x", "engine 1", "vllm serve o/m --data-parallel-size 1"),
    ("D11", "ValueError: enable_expert_parallel must be True to use EPLB.", "expert",
     "vllm serve o/m"),
    ("D11", "ModuleNotFoundError: No module named 'deep_ep'", "deep_ep",
     "vllm serve o/m --all2all-backend allgather_reducescatter"),
    ("E2", "RuntimeError: Only one platform plugin can be activated, but got: ['a', 'b']",
     "['a', 'b']", "VLLM_PLUGINS=<name> vllm serve o/m"),
    ("E6", "ModuleNotFoundError: No module named 'vllm._C'", "compiled part", "stoker doctor"),
    ("E8", "ModuleNotFoundError: No module named 'vllm.vllm_flash_attn'", "vllm_flash_attn",
     "vllm serve o/m --attention-backend TRITON_ATTN"),
    ("E8", "ImportError: vllm.vllm_flash_attn requires the CUDA flash attention extensions x",
     "flash attention", "vllm serve o/m --attention-backend TRITON_ATTN"),
    ("E9", "RuntimeError: flashinfer-cubin version (0.5.1) does not match flashinfer version "
     "(0.6.0)", "0.5.1 and 0.6.0",
     "pip install flashinfer-cubin==0.6.0 flashinfer-jit-cache==0.6.0"),
    ("E10", "subprocess.CalledProcessError: Command '['/usr/bin/gcc', 'x.c']' returned non-zero "
     "exit status 1.", "gcc", "vllm serve o/m --enforce-eager"),
    ("E10", "torch._inductor.exc.InductorError: RuntimeError: Failed to find C compiler. Please",
     "no C compiler", "sudo apt install gcc g++ python3-dev"),
    ("E11", "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: "
     "163840, Hardware limit: 101376. Reducing", "163840 bytes of shared memory",
     "VLLM_DISABLE_COMPILE_CACHE=1 vllm serve o/m"),
    ("E11", "torch._dynamo.exc.BackendCompilerFailed: backend='x' raised:", "compiled",
     "vllm serve o/m --enforce-eager"),
    ("E11", "RuntimeError: PTXAS error: Internal Triton PTX codegen error", "compiled",
     "vllm serve o/m --enforce-eager"),
    ("E13", "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with x",
     "forked", "VLLM_WORKER_MULTIPROC_METHOD=spawn vllm serve o/m"),
    ("E14", "RuntimeError: \n        An attempt has been made to start a new process before the\n"
     "        current process has finished its bootstrapping phase.", "imported",
     ""),
    ("E15", "ImportError: cannot import name 'LLM' from 'vllm' (unknown location)", "named vllm",
     "cd / && vllm serve o/m"),
    ("E15", "AttributeError: partially initialized module 'triton' has no attribute 'jit'",
     "triton", "cd / && vllm serve o/m"),
    ("E16", "RuntimeError: DeepGEMM backend is not available or outdated x", "DeepGEMM",
     "VLLM_USE_DEEP_GEMM=0 vllm serve o/m"),
    ("E17", "RuntimeError: UVA is not available", "WSL",
     "VLLM_USE_V2_MODEL_RUNNER=0 vllm serve o/m"),
    ("E18", "AssertionError: Not enough allowed NUMA nodes to bind threads of 4 local CPUWorkers. "
     "x", "4 CPU workers", "VLLM_CPU_OMP_THREADS_BIND=nobind vllm serve o/m"),
    ("E19", "ValueError: Inconsistent GPU visibility env vars: HIP_VISIBLE_DEVICES=0 vs "
     "CUDA_VISIBLE_DEVICES=1", "contradict",
     "unset CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES"),
    ("E19", "ValueError: Model architecture 'FooModel' is not supported by ROCm for now.",
     "FooModel", "docker run rocm/vllm ..."),
    ("F1", "PermissionError: [Errno 13] Permission denied", "1024", "vllm serve o/m --port 8000"),
    ("F1", "OSError: [Errno 99] Cannot assign requested address", "--host",
     "vllm serve o/m --host 127.0.0.1"),
    ("F4", "TypeError: Error: --enable-auto-tool-choice requires --tool-call-parser", "tool",
     "vllm serve o/m --enable-auto-tool-choice --tool-call-parser hermes"),
    ("F4", "KeyError: 'invalid reasoning parser: foo (chose from { a })'", "foo",
     "vllm serve o/m --reasoning-parser qwen3"),
    ("F5", "TypeError: Error: --enable-log-outputs requires --enable-log-requests",
     "--enable-log-outputs needs --enable-log-requests",
     "vllm serve o/m --enable-log-outputs --enable-log-requests"),
    ("F5", "ValueError: VLLM_ALLOW_RUNTIME_LORA_UPDATING cannot be used with api_server_count > 1",
     "contradict", "vllm serve --help"),
    ("F6", "ssl.SSLError: [SSL: KEY_VALUES_MISMATCH] key values mismatch (_ssl.c:4179)",
     "key values mismatch",
     "unset VLLM_CONFIGURE_LOGGING VLLM_LOGGING_CONFIG_PATH"),
    ("F6", "RuntimeError: ('Could not load logging config. File does not exist: %s', '/a/l.json')",
     "/a/l.json", "ls -l /a/l.json"),
    ("F7", "OSError: [Errno 24] Too many open files", "more files",
     "ulimit -n 65535 && vllm serve o/m"),
    ("F8", "FileNotFoundError: the supplied chat template path doesn't exist", "template",
     "vllm serve o/m --chat-template /path/to/template.jinja"),
    ("F9", "OSError: Can't load tokenizer for 'o/m'. If you were", "tokenizer",
     "vllm serve o/m --tokenizer <org/base-model>"),
    ("F9", "Exception: data did not match any variant of untagged enum ModelWrapper", "tokenizer",
     "pip install -U sentencepiece tiktoken tokenizers transformers"),
    ("F10", "ValueError: LoRA rank 64 is greater than max_lora_rank 16.", "rank 64",
     "vllm serve o/m --enable-lora --max-lora-rank 64"),
    ("F10", "ValueError: max_cpu_loras (1) must be >= max_loras (4).", "--max-cpu-loras 1",
     "vllm serve o/m --enable-lora --max-cpu-loras 4"),
    ("F10", "ValueError: Loading lora a failed: No adapter found for /x", "adapter a",
     "vllm serve o/m --enable-lora --lora-modules name=/path"),
    ("F11", "ImportError: Please install vllm[audio] for audio support", "vllm[audio]",
     "pip install 'vllm[audio]'"),
    ("F11", "ValueError: Fast download using 'hf_transfer' is enabled (HF_HUB_ENABLE_HF_TRANSFER=1)"
     " but 'hf_transfer' package is not available", "hf_transfer", "pip install 'hf_transfer'"),
    ("G2", "TimeoutError: Did not receive response from front-end process within 5 minutes",
     "in time", "VLLM_ENGINE_READY_TIMEOUT_S=3600 vllm serve o/m"),
    ("G5", "TimeoutError: RPC call to execute_model timed out.", "execute_model",
     "NCCL_DEBUG=INFO vllm serve o/m"),
    ("G8", "ValueError: Please specify kv_role when kv_connector is set, x", "not complete",
     "vllm serve o/m"),
    ("G8", "ValueError: Unsupported kv_role: foo", "foo", "vllm serve o/m"),
]  # fmt: skip


@pytest.mark.parametrize("era", ERAS, ids=lambda era: era.__name__)
@pytest.mark.parametrize(("cause", "error", "title", "command"), CASES)
def test_each_known_failure_in_each_era(
    cause: str, error: str, title: str, command: str, era: object
) -> None:
    problem = problem_of(error, (), era)
    assert problem.id == cause
    assert title in problem.title
    assert command in [fix.command or "" for fix in problem.fixes]
    assert WRAPPER not in problem.key_line
    assert error.rpartition("\n")[2].strip()[:50] in problem.key_line or "\n" in error


@pytest.mark.parametrize(
    ("cause", "error", "functions"),
    [
        ("B9", "AssertionError", ("load_model", "load_weights", "weight_loader")),
        ("B9", "RuntimeError: The size of tensor a (8) must match the size of tensor b (9) at x",
         ("load_weights",)),
        ("C3", "KeyError: 'foo_moe'", ("create_engine_config", "get_config", "from_pretrained")),
        ("unknown", "KeyError: 'foo_moe'", ("step",)),
        ("A9", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
         ("run_busy_loop", "step", "execute_model")),
        ("A6", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
         ("determine_num_available_blocks", "profile_run", "execute_model")),
        ("F6", "FileNotFoundError: [Errno 2] No such file or directory", ("load_cert_chain",)),
    ],
)  # fmt: skip
def test_where_it_was_raised_decides(cause: str, error: str, functions: tuple[str, ...]) -> None:
    assert problem_of(error, functions, in_core).id == cause


@pytest.mark.parametrize(
    ("line", "cause", "title"),
    [
        ("vllm serve: error: argument --max-model-len: invalid human_readable_int value: '3q'",
         "C8", "invalid human_readable_int value: '3q'"),
        ("vllm serve: error: argument --speculative-config/-sc: Value {a: cannot be converted to "
         "<function loads at 0x1>.", "F3", "takes JSON"),
        ("vllm serve: error: argument --block-size: invalid choice: 7 (choose from 1, 8, 16)",
         "C18", "--block-size"),
        ("error: invalid argument: --foo", "L4", "unknown flag --foo"),
        ("launch_server.py: error: unrecognized arguments: --tpp 2", "F2", "unknown flag --tpp"),
        ("terminate called after throwing an instance of 'c10::Error'", "G3", "c10::Error"),
        ("[rank1]:[E1003 12:00:00 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective "
         "operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=1, Timeout(ms)=600000)",
         "G6", "600000 ms"),
        ("kernel: Out of memory: Killed process 71 (VLLM::EngineCor) total-vm:1kB", "A12",
         "killed"),
    ],
)  # fmt: skip
def test_lines_of_their_own(line: str, cause: str, title: str) -> None:
    report = parse_lines([VERSION, line])
    assert report.outcome is Outcome.FAILED
    assert report.problem is not None
    assert (report.problem.id, report.problem.key_line_number) == (cause, 2)
    assert title in report.problem.title


@pytest.mark.parametrize(
    ("codes", "cause"),
    [("-9", "A12"), ("137", "A12"), ("-7", "D7"), ("-11", "G3"), ("-6", "G3"), ("-4", "E18"),
     ("-15", "G10"), ("1", "G1")],
)  # fmt: skip
def test_the_exit_code_is_read_when_there_is_nothing_else(codes: str, cause: str) -> None:
    end = f"{WRAPPER} Failed core proc(s): {{'EngineCore_DP0': {codes}}}"
    frame = '  File "x", line 1, in f'
    report = parse_lines([VERSION, "Traceback (most recent call last):", frame, end])
    assert report.problem is not None
    assert report.problem.id == cause
    assert "See root cause above" not in report.problem.title


LLAMA = ["build: 7780 (abc) with cc for x86_64", "main: loading model"]


@pytest.mark.parametrize(
    ("lines", "cause", "title"),
    [
        (["gguf_init_from_file: failed to open GGUF file '/m/x.gguf' (No such file or directory)",
          "llama_model_load: error loading model: llama_model_loader: failed to load model from "
          "/m/x.gguf", "main: exiting due to model loading error"], "L1", "/m/x.gguf"),
        (["gguf_init_from_file_impl: invalid magic characters: '<htm', expected 'GGUF'",
          "llama_model_load: error loading model: llama_model_loader: failed to load model from x"],
         "L2", "'<htm'"),
        (["llama_model_load: error loading model: tensor 'blk.3.ffn_up.weight' data is not within "
          "the file bounds, model is corrupted or incomplete"], "L2", "damaged"),
        (["llama_model_load: error loading model: error loading model architecture: unknown model "
          "architecture: 'foo9'"], "L5", "foo9"),
        (["ggml_backend_cuda_buffer_type_alloc_buffer: allocating 7165.44 MiB on device 0: "
          "cudaMalloc failed: out of memory",
          "alloc_tensor_range: failed to allocate CUDA0 buffer of size 7513509888",
          "llama_model_load: error loading model: unable to allocate CUDA0 buffer"],
         "L3", "7165.44 MiB"),
        (["llama_init_from_model: failed to initialize the context: failed to allocate buffer for "
          "kv cache"], "L3", "used up"),
        (["main: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080"],
         "F1", "port 8080"),
        (["srv    load_model: failed to load model, 'x.gguf'"], "L7", "cannot be loaded"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("head", ["", "0.00.123.456 E "])
def test_llama_server(lines: list[str], cause: str, title: str, head: str) -> None:
    report = parse_lines([*LLAMA, *(head + line for line in lines)])
    assert (report.outcome, report.engine) == (Outcome.FAILED, "llama.cpp")
    assert report.problem is not None
    assert (report.problem.id, report.problem.key_line_number) == (cause, 3)
    assert title in report.problem.title
    commands = [fix.command or "" for fix in report.problem.fixes]
    assert not any(command.startswith("vllm") for command in commands)


def test_sglang_without_memory_for_its_cache() -> None:
    head = "[2026-10-03 12:00:05 TP0] "
    report = parse_lines(
        [
            "[2026-10-03 12:00:00] server_args=ServerArgs(model_path='o/m', port=30000)",
            head + "Load weight begin. avail mem=15.2 GB",
            head + "Scheduler hit an exception: Traceback (most recent call last):",
            '  File "/s/scheduler.py", line 9, in run_scheduler_process',
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
            "[2026-10-03 12:00:06] Received sigquit from a child process. It usually means the "
            "child failed.",
        ]
    )
    assert (report.outcome, report.engine) == (Outcome.FAILED, "sglang")
    assert report.problem is not None
    assert (report.problem.id, report.problem.key_line_number) == ("Q1", 5)
    assert report.problem.fixes[0].command == (
        "python -m sglang.launch_server --model-path o/m --mem-fraction-static 0.93"
    )


def test_vllms_flags_are_translated_for_sglang() -> None:
    report = parse_lines(
        [
            "[2026-10-03 12:00:00] server_args=ServerArgs(model_path='o/m', port=30000)",
            "[2026-10-03 12:00:05 TP0] Scheduler hit an exception: Traceback (most recent call "
            "last):",
            '  File "/s/m.py", line 9, in load_model',
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        ]
    )
    assert report.problem is not None
    commands = [fix.command for fix in report.problem.fixes]
    assert "python -m sglang.launch_server --model-path o/m --tp-size 2" in commands
    assert not any("--cpu-offload-gb" in (command or "") for command in commands)


def test_an_unknown_failure_shows_where_it_was_raised() -> None:
    problem = problem_of("FrobError: no frob in 3", ("serve", "frobnicate"), in_worker)
    assert (problem.id, problem.is_known) == ("unknown", False)
    assert problem.key_line == "FrobError: no frob in 3"
    assert "not known" in problem.why
    assert "/v/x.py:3 in frobnicate" in problem.why


def test_an_import_error_inside_of_the_inspection_is_the_cause() -> None:
    head = "(APIServer pid=1) ERROR 10-03 12:00:05 [registry.py:9] "
    lines = [
        "Error in inspecting model architecture 'FooForCausalLM'",
        "Traceback (most recent call last):",
        '  File "/v/registry.py", line 3, in _run_in_subprocess',
        "subprocess.CalledProcessError: Command '['/usr/bin/python3', '-m', "
        "'vllm.model_executor.models.registry']' returned non-zero exit status 1.",
        "The above exception was the direct cause of the following exception:",
        "Traceback (most recent call last):",
        '  File "/v/registry.py", line 9, in inspect',
        "RuntimeError: Error raised in subprocess:",
        "Traceback (most recent call last):",
        '  File "/v/_custom_ops.py", line 9, in <module>',
        "ImportError: libcudart.so.13: cannot open shared object file: No such file or directory",
    ]
    last = [
        "Traceback (most recent call last):",
        '  File "/v/x.py", line 1, in f',
        "ValueError: Model architectures ['FooForCausalLM'] failed to be inspected.",
    ]
    both = parse_lines([VERSION, *(head + line for line in lines), *last]).problem
    assert both is not None
    assert (both.id, both.key_line[:22]) == ("E6", "ImportError: libcudart")
    alone = parse_lines([VERSION, *last]).problem
    assert alone is not None
    assert alone.id == "C2"
