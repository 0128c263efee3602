"""How a start ended: a refused command line is one only where a server's program refuses it, and a
failure counts where it is announced, also when its exception is not in the log.
"""

from __future__ import annotations

import pytest

from logparse import LogReport, Outcome, parse_lines
from logparse.problems.problem import announces_end, is_tool_failure

CORE = "(EngineCore_DP0 pid=9) "
STAMP = "10-03 12:00:09 [x.py:7] "
BEGUN = [
    "(APIServer pid=7) INFO 10-03 12:00:00 [api_server.py:1] vLLM API server version 0.11.0",
    f"{CORE}INFO 10-03 12:00:05 [gpu_model_runner.py:1] Model loading took 2.5000 GiB and 3.1 "
    "seconds",
]
READY = [*BEGUN, "(APIServer pid=7) INFO:     Application startup complete."]
SGLANG_BEGUN = [
    "[2026-10-03 12:00:01] server_args=ServerArgs(model_path='o/m', port=1)",
    "[2026-10-03 12:00:03 TP0] Load weight begin. avail mem=20.5 GB",
]
SGLANG_READY = [*SGLANG_BEGUN, "[2026-10-03 12:00:09] The server is fired up and ready to roll!"]
LLAMA_READY = [
    "build: 7780 (abc) with GNU 13 for Linux x86_64",
    "load_tensors:        CUDA0 model buffer size =  2048.00 MiB",
    "main: server is listening on http://127.0.0.1:8080 - starting the main loop",
]
# Programs beside a server complain in the same form as one that refuses its arguments.
COMPLAINTS = [
    "collect2: error: ld returned 1 exit status",
    "ld.lld: error: undefined symbol: frobnicate",
    "clang++: error: linker command failed with exit code 1 (use -v to see invocation)",
    "/usr/bin/ld: cannot find -lfrob: No such file or directory",
    "kernel.cu:12:3: error: expected a ';'",
    'C:\\build\\k.cu(12): error: identifier "frob" is undefined',
    "mtmd_frob: error: no such thing",
    "llama_frobnicate: error: no such thing",
    "ggml_metal_synchronize: error: command buffer 1 failed with status 5",
    "bench.py: error: unrecognized arguments: --foo",
    "curl: error: could not resolve",
    "srun: error: frobnicating",
    "rsync: error: some files could not be transferred",
    "main: error: nothing",
]


def ends(lines: list[str]) -> tuple[str, str | None, str | None, int | None]:
    report = parse_lines(lines)
    problem = report.problem if report.outcome is Outcome.FAILED else None
    key_line = (problem.key_line, problem.key_line_number) if problem else (None, None)
    return report.outcome.value, problem.id if problem else None, *key_line


@pytest.mark.parametrize("complaint", COMPLAINTS)
@pytest.mark.parametrize("lines", [READY, SGLANG_READY, LLAMA_READY], ids=["vllm", "sgl", "llama"])
def test_another_program_beside_a_server_is_no_new_start(lines: list[str], complaint: str) -> None:
    alone = parse_lines(lines)
    for more in ([complaint], [complaint, *lines[-1:]], ["usage: bench.py [-h]", complaint]):
        report = parse_lines([*lines, *more])
        assert (report.outcome, report.engine, report.attempts) == (Outcome.READY, alone.engine, ())
        assert report.facts.weights_gib == alone.facts.weights_gib


@pytest.mark.parametrize("complaint", COMPLAINTS)
def test_nor_the_end_of_one_that_is_under_way(complaint: str) -> None:
    assert ends([*BEGUN, complaint])[0] == "running"
    on = f"{CORE}INFO 10-03 12:00:09 [gpu_worker.py:1] Available KV cache memory: 4.75 GiB"
    assert ends([*BEGUN, complaint, on])[0] == "running"


@pytest.mark.parametrize(
    "line",
    [
        "vllm: error: unrecognized arguments: --foo",
        "vllm serve: error: unrecognized arguments: --foo",
        "/opt/venv/bin/vllm: error: unrecognized arguments: --foo",
        "api_server.py: error: argument --port: invalid int value: 'x'",
        "launch_server.py: error: unrecognized arguments: --tpp 2",
        "sglang serve: error: unrecognized arguments: --tpp 2",
        "python3 -m vllm.entrypoints.openai.api_server: error: unrecognized arguments: --foo",
        "C:\\llama\\llama-server.exe: error: unknown argument",
    ],
)
def test_a_server_that_refuses_its_command_line(line: str) -> None:
    assert ends([line])[:2] == ("failed", "F2")
    assert ends([line])[2:] == (line, 1)
    report = parse_lines([*READY, line])
    assert [a.outcome for a in report.attempts] == [Outcome.READY, Outcome.FAILED]


def test_a_program_of_ones_own_is_known_by_its_usage() -> None:
    block = ["usage: start_vllm.py [-h] --model MODEL", "                     [--port PORT]"]
    line = "start_vllm.py: error: the following arguments are required: --model"
    assert ends([*block, line]) == ("failed", "F2", line, 3)
    assert ends([line])[0] == "not-a-server-log"


def test_a_refused_command_line_while_a_server_runs_does_not_end_it() -> None:
    """Two terminals in one log: the second server is refused, the first goes on."""
    refused = "vllm serve: error: unrecognized arguments: --foo"
    on = '(APIServer pid=7) INFO:     127.0.0.1:45914 - "POST /v1/completions HTTP/1.1" 200 OK'
    for lines, more in ((READY, on), (LLAMA_READY, "srv  update_slots: all slots are idle")):
        report = parse_lines([*lines, refused, more])
        assert (report.outcome, report.attempts) == (Outcome.READY, ())
        assert report.facts.weights_gib is not None
    again = parse_lines([*READY, refused, *READY])
    assert [a.outcome for a in again.attempts] == [
        Outcome.READY,
        Outcome.FAILED,
        Outcome.READY,
    ]


ANNOUNCED = [
    f"{CORE}ERROR {STAMP}EngineCore failed to start.",
    f"{CORE}ERROR {STAMP}EngineCore hit an exception: Traceback (most recent call last):",
    f"(Worker_TP3 pid=8) ERROR {STAMP}WorkerProc failed to start.",
    f"ERROR {STAMP}Worker proc VllmWorker-6 died unexpectedly, shutting down executor.",
    f"(APIServer pid=7) ERROR {STAMP}Engine core proc EngineCore_DP0 died unexpectedly, shutting "
    "down client.",
    "(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above. "
    "Failed core proc(s): {}",
    "RuntimeError: Engine process failed to start. See stack trace for the root cause.",
    f"CRITICAL {STAMP}The model server process crashed",
    "vllm-1 exited with code 1",
    "srun: error: node7: task 0: Exited with exit code 1",
    "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***",
    "##[error]Process completed with exit code 1.",
    "ERROR: Job failed: exit code 1",
    "make: *** [Makefile:12: serve] Error 1",
    "vllm.service: Main process exited, code=exited, status=1/FAILURE",
    "vllm.service: Failed with result 'exit-code'.",
    "2026-10-03 12:00:09,123 INFO exited: vllm (exit status 1; not expected)",
]


@pytest.mark.parametrize("line", ANNOUNCED)
def test_an_announced_failure_without_its_exception(line: str) -> None:
    outcome, id, _, number = ends([*BEGUN, line])
    assert (outcome, number) == ("failed", 3)
    assert id not in (None, "unknown")


@pytest.mark.parametrize(
    "line",
    [
        "[2026-10-03 12:00:14] Scheduler hit an exception: Traceback (most recent call last):",
        "[2026-10-03 12:00:14 TP0] TpModelWorkerClient hit an exception: Traceback (most recent "
        "call last):",
        "[2026-10-03 12:00:15] Received sigquit from a child process. It usually means the child "
        "failed.",
        "[2026-10-03 12:00:15] Rank 0 scheduler is dead. Please check if there are relevant logs.",
    ],
)
def test_an_announced_failure_of_another_engine(line: str) -> None:
    outcome, _, key_line, number = ends([*SGLANG_BEGUN, line])
    assert (outcome, number) == ("failed", 3)
    assert line.endswith(key_line or "nothing")


@pytest.mark.parametrize("frames", range(4))
@pytest.mark.parametrize("head", ["", f"{CORE}ERROR {STAMP}", "[rank0]: "])
def test_a_traceback_that_breaks_off_is_a_failure(head: str, frames: int) -> None:
    lines = ['  File "/v/vllm/a.py", line 3, in f', "    g()", "    ^^^"][:frames]
    cut = [f"{head}{line}" for line in ("Traceback (most recent call last):", *lines)]
    assert ends([*BEGUN, *cut]) == ("failed", "G1", "Traceback (most recent call last):", 3)
    whole = [
        *cut,
        '  File "/v/b.py", line 3, in g'.replace("  ", head + "  ", 1),
        f"{head}FrobError: no",
    ]
    assert ends([*BEGUN, *whole])[1:3] == ("unknown", "FrobError: no")


@pytest.mark.parametrize("head", ["", f"{CORE}", f"{CORE}ERROR {STAMP}", "run-7f vllm "])
def test_a_copy_that_begins_and_ends_within_a_traceback_shows_a_failure(head: str) -> None:
    lines = [
        "    return f(x)",
        "           ^^^^",
        '  File "/p/vllm/a.py", line 3, in f',
        "    return g(x)",
        '  File "/p/vllm/b.py", line 3, in g',
        "    raise ValueError(",
    ]
    outcome, id, key_line, number = ends([head + line for line in lines])
    assert (outcome, id, number) == ("failed", "G1", 3)
    assert key_line == lines[2].strip()


@pytest.mark.parametrize(
    ("line", "engine"),
    [
        ("[Error] (Router) vllm-server failed to start within timeout", "vllm"),
        ("(manager) llama-server process failed to start", "llama.cpp"),
        ("./llama-server: error while loading shared libraries: libfrob.so.1: cannot open shared "
         "object file: No such file or directory", "llama.cpp"),
    ],
)  # fmt: skip
def test_whose_server_did_not_start(line: str, engine: str) -> None:
    report = parse_lines(["Starting it on port 8001", line])
    assert (report.outcome, report.engine) == (Outcome.FAILED, engine)


def test_a_launchers_error_is_not_preferred_to_the_exception() -> None:
    lines = [*BEGUN, "Error: application failed", "(APIServer pid=7) FrobError: no frob"]
    assert ends(lines)[1:3] == ("unknown", "FrobError: no frob")
    assert ends(lines[:-1])[2] == "Error: application failed"


def test_an_exception_that_only_servers_meet_shows_a_server() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "/p/transformers/x.py", line 3, in f',
        "ValueError: `rope_scaling` must be a dictionary with two fields, `type`, got x",
    ]
    assert ends(lines)[0] == "failed"
    assert ends([*lines[:-1], "KeyError: 'frob'"])[0] == "not-a-server-log"


def test_a_traceback_that_breaks_off_long_before_the_end_did_no_harm() -> None:
    cut = ["Traceback (most recent call last):", '  File "/v/vllm/a.py", line 3, in f']
    chatter = [f"(Worker_TP1 pid=8) INFO {STAMP}Frobbing {n}" for n in range(150)]
    assert ends([*BEGUN, *cut, *chatter[:20]])[0] == "failed"
    assert ends([*BEGUN, *cut, *chatter])[0] == "running"


def test_a_traceback_that_lost_its_blanks() -> None:
    head = f"(VllmWorkerProcess pid=5) ERROR {STAMP}"
    lines = [
        "Traceback (most recent call last):",
        'File "/p/vllm/a.py", line 236, in run',
        "output = run_method(worker, method, args, kwargs)",
        "^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        'File "/p/vllm/b.py", line 3, in load',
        "raise ValueError(",
    ]
    begun = [f"{head}Exception in worker VllmWorkerProcess while processing method load_model."]
    cut = [*begun, *(head + line for line in lines)]
    assert ends(cut)[:2] == ("failed", "G1")
    assert ends(cut)[3] == 1
    assert ends([*cut, head + "FrobError: no frob"])[1:] == ("unknown", "FrobError: no frob", 8)


def test_the_cause_is_preferred_to_what_announces_it() -> None:
    lines = [
        *BEGUN,
        *ANNOUNCED[:2],
        f'{CORE}ERROR {STAMP}  File "/v/vllm/a.py", line 3, in f',
        f"{CORE}ERROR {STAMP}FrobError: no frob",
        *ANNOUNCED[4:],
    ]
    assert ends(lines)[1:3] == ("unknown", "FrobError: no frob")


def test_one_part_fails_while_the_others_go_on() -> None:
    failing = ANNOUNCED[2]
    on = f"{CORE}INFO 10-03 12:00:09 [gpu_worker.py:1] Available KV cache memory: 4.75 GiB"
    assert ends([*BEGUN, failing, on])[0] == "failed"
    survived = on.replace("EngineCore_DP0 pid=9", "Worker_TP3 pid=8")
    assert ends([*BEGUN, failing, survived])[0] == "running"


def test_another_container_that_ends_is_no_failure_of_a_server_that_goes_on() -> None:
    on = f"{CORE}INFO 10-03 12:00:09 [gpu_worker.py:1] Available KV cache memory: 4.75 GiB"
    assert ends([*BEGUN, "redis-1 exited with code 1", on])[0] == "running"
    assert ends([*BEGUN, "init-1 exited with code 0"])[0] == "running"


@pytest.mark.parametrize(
    "line",
    [
        "If the server failed to start, see the documentation.",
        "Waiting for the engine, which may have died",
        "error: no announcement",
        "Process group initialized with exit hooks",
        "The scheduler has exited with code 0",
    ],
)
def test_chatter_announces_nothing(line: str) -> None:
    assert not announces_end(line, None)
    assert ends([*BEGUN, line])[0] == "running"


# (what a tool says, the cause, a part of the title)
@pytest.mark.parametrize(
    ("said", "title"),
    [
        ("/usr/bin/ld: cannot find -lcuda: No such file or directory", "driver's library"),
        ("lld: error: unable to find library -lamdhip64", "libamdhip64"),
        ("/usr/bin/ld: cannot find -lfrob", "libfrob"),
        ("/tmp/t/main.c:9:10: fatal error: Python.h: No such file or directory", "C compiler"),
    ],
)
def test_a_tool_says_why_a_build_failed(said: str, title: str) -> None:
    assert is_tool_failure(said)
    lines = [
        *BEGUN,
        said,
        "collect2: error: ld returned 1 exit status",
        f"{CORE}ERROR {STAMP}EngineCore failed to start.",
        f"{CORE}ERROR {STAMP}Traceback (most recent call last):",
        f'{CORE}ERROR {STAMP}  File "/usr/lib/python3.12/subprocess.py", line 413, in check_call',
        f"{CORE}ERROR {STAMP}subprocess.CalledProcessError: Command '['/usr/bin/gcc', 'x.c']' "
        "returned non-zero exit status 1.",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    report: LogReport = parse_lines(lines)
    assert report.problem is not None
    assert (report.problem.key_line, report.problem.key_line_number) == (said, 3)
    assert title in report.problem.title
