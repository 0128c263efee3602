"""The sample log of the project's own document, with the values that the document prints."""

from __future__ import annotations

import pytest

from logparse import LogReport, Outcome, explain, parse_lines
from logparse.records import LineCounts
from tests.places import DATA

SAMPLE = DATA / "seed_example10.log"
EXPECTED = """\
26 lines: 11 APIServer, 15 EngineCore, 3 without a level (progress bars)
weights        14.96 GiB
KV memory      4.97 GiB
KV tokens      40720 = 2545 blocks of 16
concurrency    1.24x at max length 32768
compile        24.61 s, graphs 0.31 GiB
engine init    37.80 s
ready at       http://0.0.0.0:8000
first to ready 69 s
"""


@pytest.fixture(scope="module")
def report() -> LogReport:
    return parse_lines(SAMPLE.read_text().splitlines())


def test_prints_what_the_document_prints(report: LogReport) -> None:
    text = explain(report).text()
    assert text.startswith("vllm 0.30.0 with example-org/Coder-8B-Instruct is ready\n\n" + EXPECTED)


def test_facts(report: LogReport) -> None:
    facts = report.facts
    assert report.outcome is Outcome.READY
    assert report.engine == "vllm"
    assert facts.engine_version == "0.30.0"
    assert facts.model == "example-org/Coder-8B-Instruct"
    assert facts.architecture == "LlamaForCausalLM"
    assert facts.attention_backend == "FLASH_ATTN"
    assert (facts.max_model_len, facts.requested_max_model_len) == (32768, 32768)
    assert facts.max_num_batched_tokens == 2048
    assert facts.weights_gib == 14.96
    assert facts.load_weights_s == 16.42
    assert facts.model_load_s == 18.530412
    assert facts.dynamo_s == 6.41
    assert facts.compile_s == 24.61
    assert facts.kv_memory_gib == 4.97
    assert facts.kv_tokens == 40720
    assert facts.max_concurrency == 1.24
    assert (facts.graph_capture_s, facts.graph_gib) == (9, 0.31)
    assert facts.engine_init_s == 37.80
    assert facts.supported_tasks == "'generate',"


def test_what_the_log_does_not_say_is_none(report: LogReport) -> None:
    assert report.facts.kv_blocks is None
    assert report.facts.quantization is None
    assert report.facts.tensor_parallel_size is None
    assert report.problem is None
    assert report.attempts == ()


def test_five_phases(report: LogReport) -> None:
    assert [(phase.name, phase.seconds) for phase in report.phases] == [
        ("configuration", 8),
        ("engine start and weight loading", 22),
        ("compilation", 25),
        ("memory and graphs", 12),
        ("serving", 2),
    ]
    assert sum(phase.seconds or 0 for phase in report.phases) == report.first_to_ready_s == 69


def test_counts(report: LogReport) -> None:
    assert report.lines == LineCounts(total=26, without_level=3, progress_bars=3)
    assert [(p.name, p.pids, p.num_lines) for p in report.processes] == [
        ("APIServer", (1000,), 11),
        ("EngineCore", (1100,), 15),
    ]


def test_a_log_that_ends_while_starting_is_not_ready() -> None:
    lines = SAMPLE.read_text().splitlines()
    report = parse_lines(lines[:14])
    assert report.outcome is Outcome.RUNNING
    assert report.ready_url is None
    assert [phase.state for phase in report.phases] == [
        "done", "done", "running", "absent", "absent",
    ]  # fmt: skip


def test_without_its_beginning_it_is_truncated() -> None:
    lines = SAMPLE.read_text().splitlines()
    assert parse_lines(lines[6:14]).outcome is Outcome.TRUNCATED
