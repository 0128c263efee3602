"""Logs as people paste them: only a traceback, other devices, old releases, no beginning."""

from __future__ import annotations

import pytest

from logparse import LogReport, Outcome, Problem, parse_lines
from logparse.problems.table import PROBLEM_RULES
from tests.logparse.vllm_lines import CORE, VERSION, WRAPPER

ARGS = "INFO 10-03 12:00:00 [a.py:1] non-default args: {'model': 'o/m'}"


def failing(error: str, *frames: str, prefix: str = CORE) -> LogReport:
    """Each frame is `file in function`."""
    lines = ["Traceback (most recent call last):"]
    lines += [
        f'  File "/v/{file}", line 3, in {function}'
        for file, function in (frame.split(" in ") for frame in frames)
    ]
    return parse_lines([VERSION, ARGS, *(prefix + line for line in (*lines, *error.split("\n")))])


def cause(report: LogReport) -> Problem:
    assert report.outcome is Outcome.FAILED
    assert report.problem is not None
    return report.problem


# (id, exception, frames, a part of the title, one of the commands)
CASES: list[tuple[str, str, tuple[str, ...], str, str]] = [
    ("E1", "NotImplementedError", ("vllm/platforms/interface.py in get_device_name",),
     "no device", "nvidia-smi"),
    ("C19", "NotImplementedError", ("models/foo.py in forward",),
     "lacks a part", "vllm serve o/m --model-impl transformers"),
    ("C19", "NotImplementedError: no sliding windows here", ("models/foo.py in forward",),
     "no sliding windows here", "vllm serve o/m"),
    ("A5", "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 3.50 GiB. GPU 0 has a "
     "total capacity of 15.98 GiB of which 1.25 GiB is free.", ("worker.py in load_model",),
     "the weights do not fit", "vllm serve o/m --cpu-offload-gb 8"),
    ("A5", "RuntimeError: NPU out of memory. Tried to allocate 7.50 GiB", ("x.py in foo",),
     "another 7.50 GiB were wanted", "vllm serve o/m --quantization fp8"),
    ("A6", "RuntimeError: Error in model execution: CUDA out of memory. Tried to allocate 1.50 GiB",
     ("x.py in foo",), "one step does not fit", "vllm serve o/m --max-num-seqs 128"),
    ("A15", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.25 GiB",
     ("runner.py in initialize_kv_cache",), "does not hold the KV cache",
     "vllm serve o/m --kv-cache-memory-bytes 4G"),
    ("A5", "jaxlib.XlaRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. "
     "Used 17.5G of 15.5G hbm. Exceeded", ("x.py in foo",), "need 17.5G of the chip's memory",
     "vllm serve o/m --max-model-len 4096"),
    ("B9", "KeyError: 'visual.foo.weight'", ("m.py in load_weights",), "visual.foo.weight",
     "pip install -U vllm transformers"),
    ("C1", "ValueError: Model architectures ['FooModel', 'BarModel'] are not supported for now.",
     ("x.py in foo",), "FooModel", "vllm serve o/m --model-impl transformers"),
    ("C6", "ValueError: No supported config format found in o/m", ("x.py in foo",),
     "no config.json", "ls o/m"),
    ("C18", "ValueError: Hybrid KV cache manager is disabled but failed to convert x",
     ("x.py in foo",), "KV cache", "vllm serve o/m"),
    ("D6", "RuntimeError: oneCCL: foo.cpp:9 bar: EXCEPTION: open failed", ("x.py in foo",),
     "oneCCL", "CCL_LOG_LEVEL=info vllm serve o/m"),
    ("D9", "RuntimeError: [gloo/x.cc:81] Timed out waiting 9000ms for recv operation to complete",
     ("x.py in foo",), "", "VLLM_HOST_IP=<ip> vllm serve o/m"),
    ("E3", "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
     ("x.py in foo",), "no usable", "nvidia-smi"),
    ("E4", "torch.AcceleratorError: CUDA error: system has unsupported display driver / cuda "
     "driver combination", ("x.py in foo",), "too old", "nvidia-smi"),
    ("E5", "RuntimeError: No supported CUDA architectures found for major versions [9].",
     ("x.py in foo",), "no code for this GPU", "stoker doctor"),
    ("E11", "RuntimeError: Failed compilation with ['neuronx-cc', 'compile']: x",
     ("x.py in foo",), "could not be compiled", "vllm serve o/m --enforce-eager"),
    ("E12", "RuntimeError: HIP error: invalid argument", ("x.py in foo",), "invalid argument",
     "CUDA_LAUNCH_BLOCKING=1 vllm serve o/m --enforce-eager"),
    ("E20", "ModuleNotFoundError: No module named 'frobnicator'", ("x.py in <module>",),
     "frobnicator is not installed", "pip install frobnicator"),
    ("E20", "ImportError: cannot import name 'Frob' from 'frobs' (/v/__init__.py)",
     ("x.py in <module>",), "frobs is of another version", "pip check"),
    ("F10", "ValueError: base.lm_head.weight is unsupported LoRA weight", ("x.py in foo",),
     "LoRA", "vllm serve o/m"),
]  # fmt: skip


@pytest.mark.parametrize(("id", "error", "frames", "title", "command"), CASES)
def test_cause(id: str, error: str, frames: tuple[str, ...], title: str, command: str) -> None:
    problem = cause(failing(error, *frames))
    assert problem.id == id
    assert title in problem.title
    assert any((fix.command or "").startswith(command) for fix in problem.fixes)


def test_an_exact_cause_wins_over_a_general_one_before_it() -> None:
    report = failing(
        "ModuleNotFoundError: No module named 'nice_to_have'\n"
        "ValueError: No available memory for the cache blocks.",
        "x.py in foo",
    )
    assert cause(report).id == "A2"


def test_what_the_shell_says_after_an_exception_is_not_the_cause() -> None:
    report = parse_lines(
        [VERSION, "Traceback (most recent call last):", '  File "/v/x.py", line 1, in f',
         "ValueError: no frob", "Killed"]
    )  # fmt: skip
    assert cause(report).key_line == "ValueError: no frob"
    assert cause(parse_lines([VERSION, "Killed"])).id == "A12"


@pytest.mark.parametrize(
    ("line", "id"),
    [
        ("vllm.service: Main process exited, code=killed, status=9/KILL", "A12"),
        ("vllm.service: Failed with result 'oom-kill'.", "A12"),
        ("vllm-1 exited with code 137", "A12"),
        ("vllm.service: Main process exited, code=dumped, status=11/SEGV", "G3"),
        ("vllm-1 exited with code 139", "G3"),
    ],
)
def test_what_systemd_and_docker_say_of_the_end(line: str, id: str) -> None:
    assert cause(parse_lines([VERSION, line])).id == id
    stopped = "vllm.service: Main process exited, code=exited, status=0/SUCCESS"
    assert parse_lines([VERSION, stopped]).problem is None


# Without any line of a start: (lines, engine, the line that shows the cause)
FRAGMENTS: list[tuple[tuple[str, ...], str, str]] = [
    (('  File "/p/vllm/engine.py", line 3, in f', "    foo()", "FrobError: no frob"),
     "vllm", "FrobError: no frob"),
    (("(APIServer pid=1)     foo()", "", "(APIServer pid=1) FrobError: no frob"),
     "vllm", "FrobError: no frob"),
    (('File "/p/sglang/srt/x.py", line 3, in f', "foo()", "FrobError: no frob"),
     "sglang", "FrobError: no frob"),
    (("    return cls(", WRAPPER), "vllm", WRAPPER),
    (("pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
      "  Value error, no frob [type=value_error, input_value=1]"), "vllm", "Value error, no frob"),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "engine", "key_line"), FRAGMENTS)
def test_a_traceback_alone_tells_whose_it_is(
    lines: tuple[str, ...], engine: str, key_line: str
) -> None:
    report = parse_lines(lines)
    assert report.engine == engine
    assert cause(report).key_line.startswith(key_line)


def test_code_of_others_is_no_server_log() -> None:
    report = parse_lines(
        ["Traceback (most recent call last):", '  File "/p/flask/app.py", line 1, in f', "E: x"]
    )
    assert report.outcome is Outcome.NOT_A_SERVER_LOG


def test_two_processes_of_one_name_are_kept_apart() -> None:
    report = parse_lines(
        [
            "(EngineCore_0 pid=8) ERROR 10-03 12:00:05 [core.py:9] Traceback (most recent call "
            "last):",
            "(EngineCore_0 pid=9) INFO 10-03 12:00:05 [core.py:9] Starting to load model o/m...",
            '(EngineCore_0 pid=8) ERROR 10-03 12:00:05 [core.py:9]   File "/v/x.py", line 1, in f',
            "(EngineCore_0 pid=8) ERROR 10-03 12:00:05 [core.py:9] FrobError: no frob",
            "(EngineCore_0 pid=9) INFO 10-03 12:00:06 [core.py:9] Starting to load model o/m...",
            WRAPPER,
        ]
    )
    assert cause(report).key_line == "FrobError: no frob"


def test_a_container_that_is_started_again_has_the_same_pid() -> None:
    start = [
        "(APIServer pid=1) INFO 10-03 12:00:00 [a.py:1] vLLM server version 0.30.0, serving model "
        "o/m",
        "(EngineCore pid=9) INFO 10-03 12:00:09 [a.py:1] Loading model from scratch...",
    ]
    report = parse_lines([*start, *start, start[0]])
    assert [attempt.first_line for attempt in report.attempts] == [1, 3, 5]


def test_sglang_prints_lines_of_the_vllm_that_it_imports() -> None:
    report = parse_lines(
        [
            "INFO 10-03 12:00:00 __init__.py:190] Automatically detected platform cuda.",
            "[2026-10-03 12:00:01] server_args=ServerArgs(model_path='o/m', port=1)",
            "INFO 10-03 12:00:02 __init__.py:190] Automatically detected platform cuda.",
            "[2026-10-03 12:00:03 DP1 TP0] Load weight begin. avail mem=20.5 GB",
        ]
    )
    assert (report.engine, report.facts.model) == ("sglang", "o/m")
    assert [process.name for process in report.processes] == ["DP1 TP0"]


def test_sglang_that_loses_a_scheduler_while_serving() -> None:
    report = parse_lines(
        [
            "[2026-10-03 12:00:00] The server is fired up and ready to roll!",
            "[2026-10-03 12:00:09 TP0] Scheduler hit an exception: Traceback (most recent call "
            "last):",
            '  File "/p/sglang/srt/x.py", line 1, in f',
            "RuntimeError: no frob",
            "",
            "[2026-10-03 12:00:09] Received sigquit from a child process. x",
            "Killed",
        ]
    )
    assert (report.outcome, report.died_after_ready) == (Outcome.READY, True)
    assert report.problem is not None
    assert report.problem.key_line == "RuntimeError: no frob"


def test_llama_server_before_2025() -> None:
    report = parse_lines(
        [
            'INFO [                    main] build info | tid="1" x=1 build=3351 commit="a"',
            "llm_load_tensors:      CUDA0 buffer size =  2048.00 MiB",
            "llama_new_context_with_model: n_ctx      = 512",
            "llama_new_context_with_model: KV self size  =  512.00 MiB, K (f16):  256.00 MiB, V",
            'INFO [            update_slots] all slots are idle | tid="1" timestamp=2',
        ]
    )
    assert (report.outcome, report.engine) == (Outcome.READY, "llama.cpp")
    facts = report.facts
    assert (facts.engine_version, facts.weights_gib, facts.kv_memory_gib) == ("b3351", 2.0, 0.5)


@pytest.mark.parametrize(
    ("line", "id"),
    [
        ("ggml_vulkan: Device memory allocation of size 1000000 failed.", "L3"),
        ("llama_new_context_with_model: failed to allocate compute buffers", "L3"),
        ("/b/ggml.c:77: GGML_ASSERT(frob > 0) failed", "L8"),
        ("CUDA error: an unknown frob", "L8"),
        ("gguf_init_from_file: invalid magic number 12ab34cd", "L2"),
        ("Loading model... |0.00.147.118 E llama_model_load: error loading model: unknown model "
         "architecture: 'frob'", "L5"),
    ],
)  # fmt: skip
def test_llama_server_failures(line: str, id: str) -> None:
    problem = cause(parse_lines(["ggml_cuda_init: found 1 CUDA devices:", line, "Aborted"]))
    assert problem.id == id


def test_a_log_of_serving_alone_was_ready() -> None:
    line = (
        "INFO 10-03 12:00:10 [loggers.py:1] Engine 000: Avg prompt throughput: 1.5 tokens/s, Avg "
        "generation throughput: 2.5 tokens/s, Running: 3 reqs, Waiting: 0 reqs, GPU KV cache "
        "usage: 1.5%, Prefix cache hit rate: 0.0%"
    )
    report = parse_lines([line])
    assert (report.outcome, report.first_to_ready_s) == (Outcome.READY, None)
    died = parse_lines([line, CORE + "EngineCore encountered a fatal error.",
                        CORE + "RuntimeError: no frob"])  # fmt: skip
    assert died.died_after_ready


def test_every_general_cause_comes_after_the_exact_ones() -> None:
    kinds = [rule.is_general for rule in PROBLEM_RULES]
    assert kinds == sorted(kinds)
