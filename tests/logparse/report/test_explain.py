"""What an explanation says beside capacity and cause: time, levers, warnings, serving, set-up."""

from __future__ import annotations

import pytest

from logparse import LogReport, Outcome, explain, parse_lines
from logparse.records import Sample
from logparse.report.details import chart
from logparse.rules.arguments import differing_arguments
from tests.logparse.vllm_lines import CORE
from tests.places import DATA

SAMPLE = (DATA / "seed_example10.log").read_text().splitlines()
VERSION = "INFO 10-03 12:00:00 [a.py:1] vLLM API server version 0.9.1"
READY = "INFO:     Application startup complete."


def said(report: LogReport) -> str:
    return explain(report).text()


def line(text: str, at: str = "12:00:00", level: str = "INFO") -> str:
    return f"{level} 10-03 {at} [a.py:1] {text}"


def test_where_the_time_of_the_documents_log_went() -> None:
    text = said(parse_lines(SAMPLE))
    assert "18.5 s weights from disk: 0.9 GB/s" in text
    assert "24.6 s compiling" in text
    assert "a second start saves about 17 s" in text


def test_graphs_from_the_cache_save_nothing_more() -> None:
    cached = "Directly load the compiled graph(s) for compile range (1, 8) from the cache, took 1 s"
    text = said(parse_lines([VERSION, line(cached)]))
    assert "came from the cache" in text
    assert "second start" not in text


def test_the_two_levers_of_the_document() -> None:
    text = said(parse_lines(SAMPLE))
    assert "--max-model-len 8192    4.97x at that length instead of 1.24x" in text
    assert "--kv-cache-dtype fp8    about 81440 tokens, 2.49x at max length 32768" in text


def test_no_lever_that_is_pulled_already() -> None:
    lines = [text.replace("kv_cache_dtype=auto", "kv_cache_dtype=fp8") for text in SAMPLE]
    assert "--kv-cache-dtype fp8" not in said(parse_lines(lines))


@pytest.mark.parametrize(
    ("stated", "shown"),
    [
        ("Setting kv cache block size to 32 for FLASH_ATTN backend.", "= 128 blocks of 32"),
        ("Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN'].", ""),
    ],
)
def test_the_block_size_is_said_when_the_log_tells(stated: str, shown: str) -> None:
    report = parse_lines([VERSION, line(stated), line("GPU KV cache size: 4,096 tokens")])
    assert f"KV tokens      4096 {shown}".rstrip() in said(report).splitlines()


def test_warnings_are_ranked_and_the_rest_is_counted() -> None:
    report = parse_lines(
        [
            VERSION,
            line("Custom allreduce is disabled because x", level="WARNING"),
            line("Custom allreduce is disabled because x", level="WARNING"),
            line("something of no interest", level="WARNING"),
            line("Default vLLM sampling parameters have been overridden by x", level="WARNING"),
        ]
    )
    found = [(w.id, w.count, w.line_number) for w in report.insight.warnings]
    assert found == [("sampling-defaults", 1, 5), ("all-reduce-off", 2, 2)]
    assert report.insight.num_other_warnings == 1
    text = said(report)
    assert text.index("changes the answers") < text.index("(line 2, 2 times)")
    assert "1 more warning that matters less" in text
    assert "--generation-config vllm" in text


def throughput(at: str, generation: float, usage: float, waiting: int = 0) -> str:
    return line(
        f"Engine 000: Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: {generation}"
        f" tokens/s, Running: 3 reqs, Waiting: {waiting} reqs, GPU KV cache usage: {usage}%, x",
        at,
    )


def test_serving_is_shown_as_a_chart_with_its_peak() -> None:
    report = parse_lines(
        [VERSION, READY, throughput("12:00:10", 0.0, 10.0), throughput("12:00:20", 100.0, 99.5, 7),
         throughput("12:02:10", 50.0, 20.0)]
    )  # fmt: skip
    serving = report.insight.serving
    assert serving is not None
    assert (serving.peak_kv_percent, serving.peak_line_number, serving.most_waiting) == (99.5, 4, 7)
    assert serving.samples[1].generation_tokens_per_s == 100.0
    text = said(report)
    assert "generation  ▁█▅  up to 100 tokens/s, over 2 min" in text
    assert "peak 99.5% (line 4)" in text
    assert "up to 7 requests waited" in text


def test_many_samples_are_thinned_out_and_the_peak_stays() -> None:
    lines = [throughput("12:00:10", 1.0, 80.0 if i == 4321 else 1.0) for i in range(5000)]
    serving = parse_lines([VERSION, READY, *lines]).insight.serving
    assert serving is not None
    assert (serving.num_lines, serving.peak_kv_percent) == (5000, 80.0)
    assert 100 <= len(serving.samples) <= 240
    assert all(isinstance(sample, Sample) for sample in serving.samples)


def test_preemptions_close_together_are_a_burst() -> None:
    text = "Sequence group a is preempted by PreemptionMode.RECOMPUTE mode because there is not x"
    times = ("12:01:00", "12:01:02", "12:01:05", "12:09:00")
    report = parse_lines([VERSION, READY, *(line(text, at, "WARNING") for at in times)])
    assert report.insight.serving is not None
    assert report.insight.serving.bursts == ((3, 3), (6, 1))
    assert "4 in 2 bursts, the largest 3 from line 3" in said(report)


@pytest.mark.parametrize(
    ("last", "end"),
    [
        ([line("Shutting down FastAPI HTTP server."), "INFO:     Application shutdown complete."],
         "stopped in order"),
        (["kernel: Out of memory: Killed process 71 (VLLM::EngineCor)"], "killed by the kernel"),
        (["Killed"], "killed from outside"),
        (["Terminated"], None),
    ],
)  # fmt: skip
def test_how_serving_ended(last: list[str], end: str | None) -> None:
    address = line("Starting vLLM API server on http://0.0.0.0:8000")
    text = said(parse_lines([VERSION, address, READY, *last]))
    assert f"end         {end}" in text if end else "end   " not in text


def test_processes_stand_below_those_that_start_them() -> None:
    names = ("Worker_TP0 pid=3", "APIServer pid=1", "EngineCore_DP0 pid=2", "Worker_TP1 pid=4")
    report = parse_lines([VERSION, *(f"({name}) {line('x')}" for name in names)])
    text = said(report)
    assert (
        "processes\n  APIServer (pid 1)\n    EngineCore_DP0 (pid 2)\n      Worker_TP0 (pid 3)\n"
        "      Worker_TP1 (pid 4)\n"
    ) in text


def test_arguments_are_shown_as_flags_without_secrets() -> None:
    printed = "{'model_tag': 'o/m', 'model': 'o/m', 'port': 81, 'api_key': ['sk-abcdefghijkl'], 'enable_lora': True}"  # noqa: E501
    text = said(parse_lines([VERSION, line(f"non-default args: {printed}")]))
    assert "arguments  o/m --port 81 --api-key *** --enable-lora" in text


def test_the_old_namespace_line_loses_its_defaults() -> None:
    printed = (
        "Namespace(subparser='serve', model='o/m', host=None, port=8000, dtype='half', "
        "max_model_len=4096, enforce_eager=False, dispatch_function=<function serve at 0x7f>)"
    )
    assert differing_arguments(printed) == {
        "model": "o/m", "dtype": "half", "max_model_len": "4096",
    }  # fmt: skip


def test_a_start_that_just_stops_says_where_such_starts_hang() -> None:
    report = parse_lines(
        [VERSION, line("Initializing a V1 LLM engine (v0.9.1) with config: model='o/m'"),
         line("vLLM is using nccl==2.27.3")]
    )  # fmt: skip
    text = said(report)
    assert "still starting when the log ends, in: engine start and weight loading" in text
    assert "cannot reach each other" in text
    assert "NCCL_P2P_DISABLE=1" in text


def test_a_chart_has_one_column_per_value_until_it_is_full() -> None:
    assert chart([0.0, 1.0, 2.0]) == "▁▅█"
    assert chart([]) == ""
    assert len(chart([1.0] * 1000)) <= 48


def test_an_argument_cannot_bring_control_characters_into_the_explanation() -> None:
    arguments = r"{'\x1b[2J\n\x00max_model_len': 4096, 'model': '\ud800'}"
    text = explain(parse_lines([f"INFO 10-03 12:00:01 [a.py:1] non-default args: {arguments}"]))
    assert "max-model-len 4096" in text.text()
    assert all(char.isprintable() or char == "\n" for char in text.text())


def test_the_verdict_and_its_cause_come_first() -> None:
    text = said(parse_lines([VERSION, CORE + "Traceback (most recent call last):",
                             CORE + "FrobError: odd"]))  # fmt: skip
    verdict, cause, count = (text.index(part) for part in ("failed to start", "why:", "3 lines"))
    assert verdict < cause < count


def test_a_download_is_not_called_a_slow_disk() -> None:
    text = said(
        parse_lines(
            [
                VERSION,
                line("Starting to load model o/m...", "12:00:01"),
                line("Time spent downloading weights for o/m: 95.5 seconds", "12:01:40"),
                line("Loading weights took 7.25 seconds", "12:01:48"),
                line("Model loading took 14.3 GiB memory and 104.5 seconds", "12:01:49"),
            ]
        )
    )
    assert "95.5 s download of the weights" in text
    assert "7.2 s weights from disk" in text
    assert "104.5 s weights" not in text


@pytest.mark.parametrize(
    ("last", "told", "lever"),
    [
        ("waiting for baton release at /x/lock", "waits for its lock", "pgrep -af"),
        ("Still waiting to acquire lock on /x (elapsed: 3 s)", "downloads the same", "ls -l"),
    ],
)
def test_waiting_for_a_lock_is_not_a_slow_disk(last: str, told: str, lever: str) -> None:
    start = [VERSION, line("Starting to load model o/m...")]
    text = said(parse_lines([*start, line(last)]))
    assert told in text
    assert lever in text
    assert "slow disk" not in text


def test_what_is_loaded_is_not_read_from_a_slow_disk() -> None:
    loaded = line("Model loading took 14.3 GiB memory and 4.5 seconds")
    text = said(parse_lines([VERSION, line("Starting to load model o/m..."), loaded, line("frob")]))
    assert "slow disk" not in text
    assert "compiling with a cold cache" in text


@pytest.mark.parametrize(
    "lines",
    [
        ["Processed prompts:  50%|█████     | 5/10 [00:07<00:07,  1.41s/it, est. speed input: 1]"],
        ["Prompt: 'Hello', Generated text: ' there'"],
        ["Generated text: ' there'"],
    ],
)
def test_an_engine_in_a_script_was_ready(lines: list[str]) -> None:
    start = [VERSION, line("Initializing a V1 LLM engine (v0.22.0) with config: model='o/m', x")]
    report = parse_lines([*start, *lines])
    assert (report.outcome, report.is_offline) == (Outcome.READY, True)
    assert "answered the prompts of its script" in said(report)
    waiting = "Processed prompts:   0%|          | 0/10 [00:00<?, ?it/s, est. speed input: 0.00 x]"
    assert parse_lines([*start, waiting]).outcome is Outcome.RUNNING


def test_a_probe_that_gave_up() -> None:
    start = [VERSION, line("Starting to load model o/m...")]
    event = "Warning  Unhealthy  Container frob failed startup probe, will be restarted"
    report = parse_lines([*start, event])
    assert report.problem is not None
    assert (report.problem.id, report.problem.key_line) == ("G12", event)
    assert "startup probe gave up" in report.problem.title
    asked = said(parse_lines([*start, line("[shutdown] API server: shutting down")]))
    assert "was stopped before it was ready" in asked
    assert "startup or liveness probe that gave up" in asked
    assert "slow disk" not in asked
    stopped = parse_lines([*start, "Terminated"])
    assert stopped.problem is not None
    assert "probe" in stopped.problem.why
    assert "kubectl describe pod <pod>" in [fix.command for fix in stopped.problem.fixes]


RESTARTS = [
    "frob-1  | (APIServer pid=1) INFO 10-03 12:00:00 [a.py:1] vLLM API server version 0.11.0",
    "frob-1  | (APIServer pid=1) Traceback (most recent call last):",
    'frob-1  | (APIServer pid=1)   File "/v/x.py", line 3, in main',
    "frob-1  | (APIServer pid=1) FrobError: odd",
]


def test_each_round_of_a_compose_loop_is_a_start() -> None:
    report = parse_lines(RESTARTS * 3)
    assert [attempt.outcome for attempt in report.attempts] == [Outcome.FAILED] * 3
    assert [attempt.first_line for attempt in report.attempts] == [1, 5, 9]


def test_a_line_that_is_printed_twice_is_one_start() -> None:
    assert parse_lines([line for line in RESTARTS for _ in (1, 2)]).attempts == ()


@pytest.mark.parametrize(
    ("error", "title"),
    [
        ("vllm serve: error: unrecognized arguments: frob 8",
         "the command line holds words that belong to no flag: frob 8"),
        ("vllm serve: error: unrecognized arguments: frob --nope 8", "unknown flag --nope"),
        ("error: invalid argument: frob", "the word frob stands where a flag is expected"),
        ("error: invalid argument: --frob", "unknown flag --frob"),
    ],
)  # fmt: skip
def test_a_stray_word_is_no_flag(error: str, title: str) -> None:
    report = parse_lines(["usage: vllm serve [x]", error])
    assert report.problem is not None
    assert report.problem.title == title
