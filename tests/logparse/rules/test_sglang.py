"""SGLang's logs: when it is ready, why a capture failed, and advice in its own flags."""

from __future__ import annotations

import pytest

from logparse import LogReport, Outcome, explain, parse_lines

START = [
    "[2026-10-03 12:00:00] server_args=ServerArgs(model_path='o/m', port=30000, tp_size=2, "
    "mem_fraction_static=0.85)",
    "[2026-10-03 12:00:05 TP0] Load weight begin. avail mem=30.2 GB",
    "[2026-10-03 12:00:09 TP0] Load weight end. type=Foo, avail mem=20.0 GB, mem usage=10.2 GB.",
]
HTTP = [
    "[2026-10-03 12:00:20] INFO:     Application startup complete.",
    "[2026-10-03 12:00:20] INFO:     Uvicorn running on http://0.0.0.0:30000 (Press CTRL+C to x)",
    '[2026-10-03 12:00:21] INFO:     127.0.0.1:4 - "GET /health HTTP/1.1" 503 Service Unavailable',
]
FIRED = "[2026-10-03 12:00:31] The server is fired up and ready to roll!"
DECODE = (
    "[2026-10-03 12:00:40 TP0] Decode batch, #running-req: 3, #token: 45, token usage: 0.00, "
    "cuda graph: True, gen throughput (token/s): 12.5, #queue-req: 1"
)


def failed(*lines: str) -> LogReport:
    head = (
        "[2026-10-03 12:00:10 TP0] Scheduler hit an exception: Traceback (most recent call last):"
    )
    report = parse_lines([*START, head, '  File "/s/sglang/x.py", line 3, in f', *lines])
    assert (report.outcome, report.engine) == (Outcome.FAILED, "sglang")
    return report


def test_the_http_server_alone_is_not_ready() -> None:
    assert parse_lines([*START, *HTTP]).outcome is Outcome.RUNNING
    report = parse_lines([*START, *HTTP, FIRED])
    assert (report.outcome, report.first_to_ready_s) == (Outcome.READY, 31.0)
    assert report.ready_url == "http://0.0.0.0:30000"


def test_what_to_try_while_it_hangs_is_its_own() -> None:
    hung = explain(parse_lines([START[0], START[1]])).text()
    assert "weights come slowly" in hung
    assert "--safetensors-load-strategy" not in hung
    graphs = explain(parse_lines([*START, "[2026-10-03 12:00:12 TP0] Capture cuda graph begin."]))
    assert "python -m sglang.launch_server --model-path o/m" in graphs.text()
    assert "--disable-cuda-graph" in graphs.text()


def test_for_another_engine_it_is() -> None:
    lines = ["INFO 10-03 12:00:00 [api_server.py:1] vLLM API server version 0.9.1",
             "INFO:     Application startup complete."]  # fmt: skip
    assert parse_lines(lines).outcome is Outcome.READY


def test_a_log_that_begins_while_it_generates() -> None:
    report = parse_lines([*HTTP, DECODE])
    assert (report.outcome, report.engine) == (Outcome.READY, "sglang")
    assert (report.facts.num_running, report.facts.num_waiting) == (3, 1)


@pytest.mark.parametrize(
    ("detail", "id", "has_fraction"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB", "Q2", True),
        ("Frob failed with error no kernel image is available for execution", "Q4", False),
        ("'FrobLayer' object is odd", "Q5", False),
    ],
)
def test_a_capture_fails_for_its_own_reason(detail: str, id: str, has_fraction: bool) -> None:
    for words in ("cuda graph", "CUDA graph", "piecewise CUDA graph"):
        report = failed(f"Exception: Capture {words} failed: {detail}")
        assert report.problem is not None
        assert report.problem.id == id
        assert detail in report.problem.title
        assert ("--mem-fraction-static 0.77" in explain(report).text()) is has_fraction


@pytest.mark.parametrize(
    "error",
    [
        "ValueError: Model architectures ['FrobModel'] are not supported for now.",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "RuntimeError: Failed to infer device type",
        "ImportError: cannot import name 'x' from 'frob' (/lib/frob.py)",
        "RuntimeError: No valid attention backend found for frob",
        "FrobError: odd",
        "CUDA error: an illegal memory access was encountered",
        "triton.compiler.errors.CompilationError: odd",
        "RuntimeError: NCCL error in: /x.cpp",
        "OSError: [Errno 28] No space left on device",
    ],
)
def test_no_advice_of_vllms(error: str) -> None:
    report = failed(error)
    assert report.problem is not None
    for fix in report.problem.fixes:
        for text in (fix.text, fix.command or ""):
            assert "vllm" not in text.lower()
            assert "--tensor-parallel-size" not in text
    assert "vLLM" not in report.problem.title + report.problem.why


def test_think_tokens_that_are_not_there() -> None:
    report = failed("ValueError: think_end_token '</frob>' must encode to exactly one token for x.")
    assert report.problem is not None
    assert report.problem.id == "F12"
    assert "</frob>" in report.problem.title


def test_gloos_line_of_ranks_that_did_not_meet() -> None:
    line = "[Gloo] Rank 0 is NOT connected to: [1, 3]"
    fine = parse_lines([*START, line, *HTTP, FIRED])
    assert fine.outcome is Outcome.READY
    assert parse_lines([*START, line]).outcome is Outcome.RUNNING
    report = parse_lines(
        [*START, line, "[2026-10-03 12:00:40] Received sigquit from a child process. It x"]
    )
    assert report.problem is not None
    assert (report.problem.id, report.problem.key_line) == ("D9", line)


def test_arguments_of_newer_releases() -> None:
    report = parse_lines(
        [
            "[2026-10-03 12:00:00] server_args={'model_path': 'o/m', 'host': '127.0.0.1', 'port': "
            "30000, 'tp_size': 4, 'mem_fraction_static': 0.8, 'api_key': None}",
            "[2026-10-03 12:00:10 TP0] Scheduler hit an exception: Traceback (most recent call last"
            "):",
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        ]
    )
    assert (report.engine, report.facts.model) == ("sglang", "o/m")
    assert report.problem is not None
    assert report.problem.fixes[0].command == (
        "python -m sglang.launch_server --model-path o/m --tp-size 4 --mem-fraction-static 0.85"
    )


@pytest.mark.parametrize("rank", ["DP0 TP0 EP0", "ATTN_CP0 MOE_DP0 TP0", "TP7"])
def test_names_of_ranks_and_clocks(rank: str) -> None:
    line = f"[2026-10-03 12:00:05.816 {rank}] Load weight end. type=Foo, mem usage=10.5 GB."
    report = parse_lines([line])
    assert ([process.name for process in report.processes], report.facts.weights_gib) == (
        [rank], 10.5,
    )  # fmt: skip


def test_a_capture_whose_reason_is_on_the_next_line() -> None:
    report = failed("Exception: Capture cuda graph failed:", "  frob has no native build")
    assert report.problem is not None
    assert (report.problem.id, "frob has no native build" in report.problem.title) == ("Q5", True)


def test_states_of_linear_layers_that_leave_no_room() -> None:
    report = failed(
        "AssertionError: max_mamba_cache_size=4, mamba_ratio=5, resulting max_num_reqs=0"
    )
    assert report.problem is not None
    assert report.problem.id == "Q6"
    assert "--mem-fraction-static 0.90" in (report.problem.fixes[0].command or "")
