"""llama-server's logs of 2026: its newest heads, slots, two caches of one model, the router, and
what it only warns of.
"""

from __future__ import annotations

import pytest

from logparse import Outcome, explain, parse_lines

NEWEST = [
    "0.00.410.100 I cmn  common_param: common_params_print_info: build 10321 (abc123d) with GNU",
    "0.00.410.200 I cmn  common_param: device_info:",
    "0.00.410.300 I cmn  common_param:   - CUDA0   : A Card (24000 MiB, 23000 MiB free)",
    "0.00.600.000 I srv    load_model: loading model '/m/foo.gguf'",
    "0.01.000.000 I load_tensors:        CUDA0 model buffer size =     0.00 MiB",
    "0.02.000.000 I load_tensors:        CUDA0 model buffer size =  2048.00 MiB",
    "0.02.100.000 I llama_context: n_ctx         = 4096",
    "0.02.100.001 I llama_context: n_ctx_seq     = 1024",
    "0.02.500.000 I srv    load_model: initializing, n_slots = 4, n_ctx_slot = 1024, kv_unified",
    "0.07.250.000 I srv  llama_server: listening on http://127.0.0.1:8123",
]


def test_the_newest_heads() -> None:
    report = parse_lines(NEWEST)
    facts = report.facts
    assert (report.outcome, report.engine) == (Outcome.READY, "llama.cpp")
    assert (facts.engine_version, facts.model) == ("b10321", "/m/foo.gguf")
    assert (facts.weights_gib, facts.max_model_len) == (2.0, 1024)
    assert (facts.num_slots, facts.slot_tokens) == (4, 1024)
    assert report.ready_url == "http://127.0.0.1:8123"
    assert "slots          4, each for up to 1024 tokens" in explain(report).text()


def test_the_clock_counts_from_the_start_of_the_process() -> None:
    assert parse_lines(NEWEST).first_to_ready_s == 7.25
    assert parse_lines(NEWEST[3:]).first_to_ready_s is None  # the beginning is not there


@pytest.mark.parametrize("head", ["{}", "web-1  | {}"])
def test_heads_without_a_clock(head: str) -> None:
    lines = [head.format(line[13:]) for line in NEWEST]
    report = parse_lines(lines)
    assert (report.outcome, report.facts.engine_version) == (Outcome.READY, "b10321")


SWA = [
    "build: 9001 (abc) with cc for x",
    "llama_kv_cache_iswa: creating non-SWA KV cache, size = 8192 cells",
    "llama_kv_cache:       MTL0 KV buffer size =  512.00 MiB",
    "llama_kv_cache: size =  512.00 MiB (  8192 cells,   4 layers,  1/1 seqs), K (f16): 1 MiB",
    "llama_kv_cache_iswa: creating     SWA KV cache, size = 1024 cells",
    "llama_kv_cache:       MTL0 KV buffer size =   64.00 MiB",
    "llama_kv_cache: size =   64.00 MiB (  1024 cells,  20 layers,  1/1 seqs), K (f16): 1 MiB",
]
DRAFT = "llama_kv_cache: size =   32.00 MiB (  8192 cells,   2 layers,  1/1 seqs), K (f16): 1 MiB"


def test_the_window_of_a_model_is_no_rank() -> None:
    facts = parse_lines(SWA).facts
    assert (facts.kv_memory_gib, facts.kv_tokens) == (0.5625, 8192)


def test_a_trial_with_the_same_sizes_is_not_counted_twice() -> None:
    facts = parse_lines(SWA + SWA[1:]).facts
    assert (facts.kv_memory_gib, facts.kv_tokens) == (0.5625, 8192)


def test_a_draft_model_has_a_cache_of_its_own() -> None:
    facts = parse_lines([*SWA, DRAFT]).facts
    assert (facts.kv_memory_gib, facts.kv_tokens) == ((0.5625, 0.0312), 8192)


ROUTER = [
    "0.00.050.000 I cmn  common_param: common_params_print_info: build 10321 (abc123d) with GNU",
    "0.00.060.000 I srv  llama_server: starting router server, no model will be loaded here",
    "0.00.070.000 I srv  llama_server: router server is listening on http://0.0.0.0:8080",
    "1.10.000.000 I srv          load: spawning server instance with name=foo on port 40123",
]
CHILD = [f"[40123] {line}" for line in NEWEST]


def test_a_router_and_the_process_of_a_model_are_one_start() -> None:
    report = parse_lines([*ROUTER, *CHILD])
    assert (report.outcome, report.attempts) == (Outcome.READY, ())
    assert report.ready_url == "http://0.0.0.0:8080"
    assert report.facts.weights_gib == 2.0
    assert report.processes == ()


def test_a_router_serves_on_when_a_model_fails() -> None:
    report = parse_lines(
        [*ROUTER, *CHILD[:4], "[40123] 0.01.000.000 E srv    load_model: failed to load model, 'x'"]
    )
    assert (report.outcome, report.problem) == (Outcome.READY, None)


def test_the_process_of_a_model_without_clocks() -> None:
    lines = ["load_tensors:        CUDA0 model buffer size =  2048.00 MiB",
             "CUDA error: frob initialization failed"]  # fmt: skip
    report = parse_lines([f"[40123] {line}" for line in lines])
    assert report.facts.weights_gib == 2.0
    assert report.problem is not None
    assert (report.outcome, report.problem.id) == (Outcome.FAILED, "L8")


@pytest.mark.parametrize("head", ["", "0.01.000.000 I "])
def test_the_end_of_a_models_process_is_a_warning(head: str) -> None:
    line = head + "srv    operator(): instance name=foo exited with status {}"
    report = parse_lines([*ROUTER, *CHILD[:4], line.format(-9)])
    assert [warning.id for warning in report.insight.warnings] == ["model-process-ended"]
    assert parse_lines([*ROUTER, line.format(0)]).insight.warnings == ()


@pytest.mark.parametrize(
    "line",
    [
        "warning: no usable GPU found, --gpu-layers option will be ignored",
        "warning: not compiled with GPU offload support, --gpu-layers option will be ignored",
        "0.00.300.000 W cmn  common_param: no usable GPU found, --gpu-layers will be ignored",
        "ggml_cuda_init: failed to initialize CUDA: (null)",
        "load_tensors: offloaded 0/29 layers to GPU",
    ],
)
def test_a_fall_back_to_the_cpu_is_a_warning(line: str) -> None:
    report = parse_lines([*NEWEST[:3], line, *NEWEST[3:]])
    assert report.outcome is Outcome.READY
    assert [warning.id for warning in report.insight.warnings] == ["no-gpu-used"]
    assert "computed on the CPU alone" in explain(report).text()


METAL = [
    "ggml_metal_synchronize: error: command buffer 2 failed with status 5",
    "error: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
]


def test_metal_out_of_memory() -> None:
    served = parse_lines([*NEWEST, *METAL])
    assert (served.outcome, served.facts.weights_gib) == (Outcome.READY, 2.0)
    assert "Metal ran out of GPU memory" in explain(served).text()
    failed = parse_lines([*NEWEST[:8], *METAL])
    assert failed.problem is not None
    assert (failed.outcome, failed.problem.id) == (Outcome.FAILED, "L3")
    assert failed.problem.key_line == METAL[1]


@pytest.mark.parametrize(
    ("line", "title"),
    [
        (
            "clip_init: failed to load model '/p': load_hparams: unknown projector type: frob",
            "this build does not know the projector type frob of the mmproj file",
        ),
        (
            "clip_init: failed to load model '/p': operator(): unable to find tensor v.blk.1.x",
            "the mmproj file lacks the tensor v.blk.1.x",
        ),
    ],
)
def test_a_projector_that_does_not_fit(line: str, title: str) -> None:
    report = parse_lines(
        [
            *NEWEST[:8],
            line,
            "",
            "mtmd_init_from_file: error: Failed to load CLIP model from /m/p.gguf",
            "srv    load_model: failed to load multimodal model, '/m/p.gguf'",
            "main: exiting due to model loading error",
        ]
    )
    assert report.problem is not None
    assert (report.outcome, report.problem.id, report.problem.title) == (
        Outcome.FAILED, "L9", title,
    )  # fmt: skip
    assert report.problem.key_line == line
