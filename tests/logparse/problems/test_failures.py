"""Known causes by lines written in their shape, and the order of evidence."""

from __future__ import annotations

import pytest

from logparse import LogReport, Outcome, Problem, parse_lines
from logparse.problems.table import PROBLEM_RULES
from tests.logparse.vllm_lines import CORE

VERSION = (
    "(APIServer pid=1) INFO 10-03 12:00:00 [a.py:1] vLLM server version 0.30.0, serving model o/m"
)
WRAPPER = (
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. "
    "Failed core proc(s): {}"
)


def traceback(error: str, *functions: str, prefix: str = CORE) -> list[str]:
    frames = [f'{prefix}  File "/v/x.py", line 3, in {name}' for name in functions]
    return [f"{prefix}Traceback (most recent call last):", *frames, f"{prefix}{error}"]


def report_of(*lines: str) -> LogReport:
    return parse_lines([VERSION, *lines, WRAPPER])


def problem_of(*lines: str) -> Problem:
    report = report_of(*lines)
    assert report.outcome is Outcome.FAILED
    assert report.problem is not None
    return report.problem


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 270.00 MiB. GPU 0 has a total "
    "capacity of 15.47 GiB of which 115.31 MiB is free."
)

# (id, exception, a part of the title, a command or None)
CASES = [
    (
        "A1",
        "ValueError: To serve at least one request with the model's max seq len (32768), (4.00 "
        "GiB KV cache is needed, which is larger than the available KV cache memory (1.50 GiB). "
        "Based on the available memory, the estimated maximum model length is 12288. Try",
        "needs 4.00 GiB",
        "vllm serve o/m --max-model-len 12288",
    ),
    (
        "A1",
        "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens "
        "that can be stored in KV cache (9216). Try",
        "9216 tokens",
        "vllm serve o/m --max-model-len 9216",
    ),
    (
        "A2",
        "ValueError: No available memory for the cache blocks. Try increasing",
        "no memory is left",
        "vllm serve o/m --gpu-memory-utilization 0.95",
    ),
    (
        "A3",
        "ValueError: Free memory on device cuda:0 (13.58/15.99 GiB) on startup is less than "
        "desired GPU memory utilization (0.92, 14.71 GiB). Decrease",
        "14.71 GiB of GPU memory were asked for",
        "vllm serve o/m --gpu-memory-utilization 0.81",
    ),
    (
        "A4",
        "AssertionError: Error in memory profiling. Initial free memory 9.1 GiB, current free "
        "memory 9.9 GiB.",
        "released GPU memory",
        None,
    ),
    (
        "A7",
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy "
        "requests. Please",
        "256 requests",
        "vllm serve o/m --max-num-seqs 128",
    ),
    (
        "A10",
        "ValueError: max_num_seqs (256) exceeds available Mamba cache blocks (83). x",
        "holds 83",
        "vllm serve o/m --max-num-seqs 83",
    ),
    (
        "A13",
        "ValueError: Available memory on node 0 (10.0/32.0 GiB) on startup is less than desired "
        "CPU memory utilization (0.9, 28.8 GiB). On",
        "10.0 of 32.0 GiB are free",
        "vllm serve o/m --gpu-memory-utilization 0.29",
    ),
    (
        "A13",
        "ValueError: Available memory on node 0 (4.66/18.0 GiB) on kv cache allocation is less "
        "than requested memory for kv (-0.39/3.6 GiB). Reduce",
        "nothing of the 3.6 GiB share",
        "vllm serve o/m --gpu-memory-utilization 0.35",
    ),
    (
        "B1",
        "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: x)",
        "gated",
        "hf auth login",
    ),
    (
        "B2",
        "OSError: o/m is not a local folder and is not a valid model identifier listed on "
        "'https://huggingface.co/models'",
        "no model o/m",
        None,
    ),
    (
        "B3",
        "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the requested files, and "
        "outgoing traffic has been disabled.",
        "cannot be reached",
        "hf download o/m",
    ),
    (
        "B4",
        "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url",
        "too many requests",
        None,
    ),
    ("B5", "OSError: [Errno 28] No space left on device", "disk is full", None),
    (
        "B6",
        "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge",
        "HeaderTooLarge",
        "hf download --force-download o/m",
    ),
    (
        "B7",
        "RuntimeError: Cannot find any model weights with `/m/x`",
        "no weight files in /m/x",
        "ls -lh /m/x",
    ),
    (
        "B8",
        "ValueError: Unknown quantization method: gguf. Must be one of [x]",
        "GGUF",
        "stoker serve o/m",
    ),
    (
        "B9",
        "ValueError: There is no module or parameter named 'a.b' in FooForCausalLM",
        "a.b has no place",
        None,
    ),
    (
        "B10",
        "PermissionError: [Errno 13] Permission denied: '/.cache'",
        "/.cache cannot be read or written",
        None,
    ),
    (
        "C1",
        "ValueError: Model architectures ['FooForCausalLM'] are not supported for now. Supported",
        "FooForCausalLM",
        "vllm serve o/m --model-impl transformers",
    ),
    (
        "C3",
        "ValueError: The checkpoint you are trying to load has model type `foo` but Transformers "
        "does not recognize this architecture.",
        "model type foo",
        "pip install -U vllm transformers",
    ),
    (
        "C4",
        "RuntimeError: Failed to load the model config. If the model is a custom model, consider "
        "setting `trust_remote_code=True` in",
        "own repository",
        None,
    ),
    (
        "C5",
        "ImportError: This modeling file requires the following packages that were not found in "
        "your environment: einops, timm. Run",
        "einops, timm",
        None,
    ),
    (
        "C6",
        "ValueError: Could not detect config format for no config file found. x",
        "no config.json",
        None,
    ),
    (
        "C7",
        "ValueError: User-specified max_model_len (100000) is greater than the derived "
        "max_model_len (max_position_embeddings=8192.0 or x)",
        "larger than the 8192",
        "vllm serve o/m --max-model-len 8192",
    ),
    (
        "C9",
        "ValueError: max_num_batched_tokens (2048) is smaller than max_model_len (8192). x",
        "2048 tokens",
        "vllm serve o/m --max-num-batched-tokens 8192",
    ),
    (
        "C11",
        "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. x",
        "bfloat16",
        "vllm serve o/m --dtype float16",
    ),
    (
        "C12",
        "ValueError: Cannot find the config file for awq_marlin",
        "awq_marlin",
        "vllm serve o/m",
    ),
    (
        "C16",
        "ValueError: No valid attention backend found for cuda with x",
        "no attention backend",
        None,
    ),
    (
        "D1",
        "ValueError: Total number of attention heads (14) must be divisible by tensor parallel "
        "size (4).",
        "14 attention heads",
        None,
    ),
    (
        "D2",
        "ValueError: World size (4) is larger than the number of available GPUs (2) in this node.",
        "4 GPUs were asked for, 2 are there",
        "vllm serve o/m --tensor-parallel-size 2",
    ),
    (
        "D6",
        "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "NCCL",
        "NCCL_DEBUG=INFO vllm serve o/m",
    ),
    ("E1", "RuntimeError: Device string must not be empty", "no device", "stoker doctor"),
    ("E3", "RuntimeError: No CUDA GPUs are available", "no usable NVIDIA", "nvidia-smi"),
    (
        "E4",
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12040).",
        "driver is too old",
        None,
    ),
    (
        "E5",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "no code for this GPU",
        None,
    ),
    (
        "E6",
        "ImportError: libcudart.so.13: cannot open shared object file: No such file",
        "libcudart.so.13",
        None,
    ),
    ("E7", "ImportError: /v/_C.abi3.so: undefined symbol: _ZN3c105ErrorC2E", "another torch", None),
    (
        "E9",
        "RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist",
        "tools for it are missing",
        None,
    ),
    (
        "E10",
        "RuntimeError: Failed to find C compiler. Please specify via CC",
        "no C compiler",
        None,
    ),
    ("F1", "OSError: [Errno 98] Address already in use", "already in use", None),
    ("F9", "openai_harmony.HarmonyError: invalid tiktoken vocab file: x", "tiktoken", None),
    (
        "G2",
        "TimeoutError: Timed out waiting for engine core processes to start. x",
        "in time",
        "VLLM_ENGINE_READY_TIMEOUT_S=3600 vllm serve o/m",
    ),
]


@pytest.mark.parametrize(("cause", "error", "title", "command"), CASES)
def test_known_cause(cause: str, error: str, title: str, command: str | None) -> None:
    problem = problem_of(*traceback(error, "main"))
    assert problem.id == cause
    assert title in problem.title
    assert problem.key_line.startswith(error[:60])
    assert problem.key_line_number == 4
    assert problem.fixes
    commands = [fix.command for fix in problem.fixes]
    assert command is None or command in commands
    assert all("{" not in (fix.command or "") or "{..." in (fix.command or "") or
               "image" in (fix.command or "") for fix in problem.fixes)  # fmt: skip


@pytest.mark.parametrize(
    ("functions", "cause"),
    [
        (("load_model", "create_weights"), "A5"),
        (("determine_available_memory", "profile_run", "_dummy_run"), "A6"),
        (("compile_or_warm_up_model", "capture_model"), "A8"),
    ],
)
def test_the_place_of_an_out_of_memory_error_tells_its_cause(
    functions: tuple[str, ...], cause: str
) -> None:
    assert problem_of(*traceback(OOM, *functions)).id == cause


def test_the_wrapper_is_never_the_cause() -> None:
    problem = problem_of(*traceback("KeyError: 'x'", "f"))
    assert (problem.key_line, problem.id) == ("KeyError: 'x'", "unknown")


def test_the_workers_exception_comes_before_the_cores() -> None:
    worker = "(Worker_TP1 pid=3) ERROR 10-03 12:00:04 [w.py:9] "
    problem = problem_of(
        *traceback("ZeroDivisionError: division by zero", "f", prefix=worker),
        *traceback("Exception: WorkerProc initialization failed due to an exception in a background"
                   " process. See stack trace for root cause.", "g"),
        *traceback("RuntimeError: cancelled", "h"),
    )  # fmt: skip
    assert (problem.key_line, problem.process) == (
        "ZeroDivisionError: division by zero",
        "Worker_TP1",
    )


def test_a_caught_exception_is_no_cause() -> None:
    report = parse_lines(
        [
            VERSION,
            *traceback("ImportError: no such thing", "probe", prefix="(APIServer pid=1) "),
            "(APIServer pid=1) INFO 10-03 12:00:04 [a.py:1] Using max model len 4096",
        ]
    )
    assert (report.outcome, report.problem) == (Outcome.RUNNING, None)


def test_an_ignored_exception_is_no_cause() -> None:
    report = parse_lines(
        [VERSION, "Exception ignored in: <function f>", *traceback("ValueError: x", "f", prefix="")]
    )
    assert report.outcome is Outcome.RUNNING


def test_the_same_words_at_info_level_are_no_failure() -> None:
    line = "Free memory on device (14.66/15.99 GiB) on startup. Desired GPU memory utilization is"
    report = parse_lines([VERSION, f"(EngineCore pid=2) INFO 10-03 12:00:04 [a.py:1] {line}"])
    assert report.outcome is Outcome.RUNNING


def test_an_earlier_error_line_that_names_the_cause_is_shown() -> None:
    problem = problem_of(
        CORE + "Failed to load model - not enough GPU memory. Try lowering",
        *traceback(OOM, "load_model"),
    )
    assert problem.key_line.startswith("Failed to load model")
    assert problem.key_line_number == 2
    assert "270.00 MiB" in problem.title


def test_pydantic_hides_the_cause_in_its_second_line() -> None:
    lines = traceback("pydantic_core.ValidationError: 1 validation error for ModelConfig", "f",
                      prefix="(APIServer pid=1) ")  # fmt: skip
    problem = problem_of(
        *lines, "(APIServer pid=1)   Value error, something odd [type=value_error]"
    )
    assert problem.key_line == "Value error, something odd [type=value_error]"


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("Killed", "A12"),
        ("start.sh: line 7: 12345 Killed                  vllm serve o/m", "A12"),
        ("Bus error (core dumped)", "D7"),
        ("Segmentation fault (core dumped)", "G3"),
        ("Illegal instruction", "E18"),
    ],
)
def test_death_without_a_word(line: str, cause: str) -> None:
    report = parse_lines([VERSION, line])
    assert report.outcome is Outcome.FAILED
    assert report.problem is not None
    assert report.problem.id == cause


def test_the_exit_code_in_the_wrapper_is_the_last_resort() -> None:
    report = parse_lines([VERSION, WRAPPER.replace("{}", "{'EngineCore': -9}")])
    assert report.problem is not None
    assert report.problem.id == "A12"


def test_a_flag_that_is_gone() -> None:
    report = parse_lines(["vllm serve: error: unrecognized arguments: --max-seq-len-to-capture 8"])
    assert report.problem is not None
    assert report.problem.title == "the flag --max-seq-len-to-capture no longer exists"
    assert report.problem.fixes[0].text == "use --max-cudagraph-capture-size instead"


def test_a_bad_choice() -> None:
    report = parse_lines(
        ["vllm serve: error: argument --dtype: invalid choice: 'int3' (choose from 'auto', 'half')"]
    )
    assert report.problem is not None
    assert report.problem.title == "--dtype does not take 'int3'; it takes 'auto', 'half'"


def test_a_bind_error_after_the_ready_line_is_a_failure() -> None:
    report = parse_lines(
        [
            VERSION,
            "INFO:     Application startup complete.",
            "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): "
            "address already in use",
        ]
    )
    assert report.outcome is Outcome.FAILED
    assert report.problem is not None
    assert report.problem.title == "port 8000 is already in use by another process"


def test_the_last_of_several_starts_counts() -> None:
    second = VERSION.replace("pid=1", "pid=9").replace("12:00", "12:30")
    report = parse_lines(
        [VERSION, *traceback(OOM, "load_model"), WRAPPER, second,
         "(APIServer pid=9) INFO 10-03 12:30:03 [a.py:1] Application startup complete."]
    )  # fmt: skip
    assert report.outcome is Outcome.READY
    assert report.problem is None
    assert [a.outcome for a in report.attempts] == [Outcome.FAILED, Outcome.READY]
    assert (report.attempts[0].key_line_number, report.attempts[1].first_line) == (4, 6)
    assert [p.name for p in report.processes] == ["APIServer"]
    assert [p.pids for p in report.processes] == [(9,)]


def test_table_is_well_formed() -> None:
    for rule in PROBLEM_RULES:
        assert rule.titles, rule.id
        assert rule.fixes, rule.id
        assert rule.why.endswith("."), rule.id
