"""Our own engine's log: vLLM's shapes without compilation and graphs, and its five failures."""

from __future__ import annotations

import argparse
import ast
import re

import pytest

from engine.args import EngineArgs
from logparse import (
    LogParser,
    LogReport,
    Outcome,
    PhaseFinished,
    PhaseStarted,
    ProgressMade,
    ServerReady,
    explain,
    parse_lines,
)
from logparse.problems.flags import OWN_FLAGS
from logparse.report.line_meaning import explain_line
from tests.places import DATA, ROOT

START = (DATA / "own_engine_start.log").read_text().splitlines()
THROUGHPUT = (
    "(APIServer pid=70) INFO 10-03 12:00:16 [stat_logger.py:74] Engine 000: Avg prompt throughput: "
    "96.5 tokens/s, Avg generation throughput: 250.1 tokens/s, Running: 8 reqs, Waiting: 2 reqs, "
    "CPU KV cache usage: 12.5%, Prefix cache hit rate: 3.0%"
)


def fail(*errors: str, before: int = 5) -> LogReport:
    lines = [f"(EngineCore pid=71) ERROR 10-03 12:00:04 [proc.py:61] {text}" for text in errors]
    return parse_lines([*START[:before], *lines])


def test_a_good_start() -> None:
    report = parse_lines(START)
    facts = report.facts
    assert (report.outcome, report.engine) == (Outcome.READY, "stoker")
    assert (facts.engine_version, facts.model) == ("0.1.0", "smollm2-135m")
    assert (facts.dtype, facts.platform, facts.quantization) == ("bfloat16", "cpu", None)
    assert (facts.enforce_eager, facts.tensor_parallel_size) == (True, 1)
    assert facts.attention_backend == "REFERENCE"
    assert (facts.weights_gib, facts.kv_memory_gib, facts.kv_tokens) == (0.25, 4.0, 186416)
    assert (facts.max_concurrency, facts.max_model_len) == (22.76, 8192)
    assert facts.engine_init_s == 1.25
    assert report.ready_url == "http://127.0.0.1:8123"
    assert report.first_to_ready_s == 6


def test_compilation_and_graphs_are_absent_and_not_zero() -> None:
    report = parse_lines(START)
    assert report.facts.compile_s is None
    assert report.facts.graph_gib is None
    assert [(phase.seconds, phase.state) for phase in report.phases] == [
        (2, "done"), (1, "done"), (None, "absent"), (2, "done"), (1, "done"),
    ]  # fmt: skip
    text = explain(report).text()
    assert "3 compilation                      absent" in text
    assert "compile " not in text
    assert "graphs" not in text.replace("memory and graphs", "")


def test_events_of_a_live_start() -> None:
    parser = LogParser()
    events = [event for line in START for event in parser.feed(line)]
    names = [event.name for event in events if isinstance(event, PhaseStarted)]
    assert names == [
        "configuration", "engine start and weight loading", "memory and graphs", "serving",
    ]  # fmt: skip
    finished = [event for event in events if isinstance(event, PhaseFinished)]
    assert [event.seconds for event in finished] == [2, 1, 2, 1]
    bars = [event for event in events if isinstance(event, ProgressMade)]
    assert [(bar.done, bar.total) for bar in bars] == [(0, 1), (1, 1)]
    assert bars[0].text == "Loading safetensors checkpoint shards"
    ready = [event for event in events if isinstance(event, ServerReady)]
    assert [(event.url, event.line_number) for event in ready] == [("http://127.0.0.1:8123", 21)]


def test_a_second_that_has_not_passed_is_not_zero() -> None:
    at_once = [line.replace("12:00:06", "12:00:05") for line in START]
    assert "5 serving                          under 1 s" in explain(parse_lines(at_once)).text()


def test_throughput_line() -> None:
    facts = parse_lines([*START, THROUGHPUT]).facts
    assert (facts.prompt_tokens_per_s, facts.generation_tokens_per_s) == (96.5, 250.1)
    assert (facts.num_running, facts.num_waiting, facts.kv_usage_percent) == (8, 2, 12.5)


def test_a_stop_after_ready_is_no_failure() -> None:
    report = parse_lines(
        [
            *START,
            "(APIServer pid=70) INFO 10-03 12:01:00 [launch.py:141] [shutdown] API server: "
            "shutdown triggered",
            "(APIServer pid=70) INFO:     Application shutdown complete.",
        ]
    )
    assert (report.outcome, report.was_stopped, report.problem) == (Outcome.READY, True, None)
    assert "was stopped later" in explain(report).headline


@pytest.mark.parametrize(
    ("errors", "cause", "title", "command"),
    [
        (
            (
                "EngineCore failed to start.",
                "MemoryBudgetError: To serve at least one request with the model's max seq len "
                "(8192), (0.18 GiB KV cache is needed, which is larger than the available KV cache "
                "memory (0.05 GiB). Based on the available memory, the estimated maximum model "
                "length is 2272. Try increasing `gpu_memory_utilization` or ...",
            ),
            "A1",
            "one request of 8192 tokens needs 0.18 GiB of KV cache, 0.05 GiB are there",
            "stoker serve smollm2-135m --port 8123 --max-model-len 2272",
        ),
        (
            (
                "OSError: [Errno 98] Address already in use",
                "ConfigError: port 8123 is already in "
                "use on 127.0.0.1; stop the program that holds it, or use --port N.",
            ),
            "F1",
            "port 8123 is already in use by another process",
            "stoker serve smollm2-135m --port 8124",
        ),
        (
            ("ModelNotFoundError: No such model folder: /models/none.",),
            "B2",
            "there is no model /models/none",
            "stoker models list",
        ),
        (
            ("CorruptModelError: /m/model.safetensors is truncated: 10 of 270 MB.",),
            "B6",
            "a file of the model is damaged or incomplete",
            "df -h",
        ),
        (
            (
                "RefusedFormatError: /m holds weights only as pickle files (pytorch_model.bin). "
                "They are refused, because loading a pickle can run any code that is inside it.",
            ),
            "S4",
            "the weights come only as pickle files, which are never loaded",
            "ls -lh smollm2-135m",
        ),
        (
            ("CorruptModelError: /m holds no tokenizer.json; without it text cannot be read.",),
            "S5",
            "the model folder holds no tokenizer.json",
            "ls -lh smollm2-135m",
        ),
        (
            ("CorruptModelError: The checkpoint in /m lacks 90 parameters: a, b, ....",),
            "S6",
            "config.json and the weights do not belong together (90 parameters are missing)",
            "stoker serve",
        ),
        (
            (
                "CorruptModelError: Parameter model.embed_tokens.weight has shape [8, 6], but "
                "config.json asks for [8, 5]. The two do not belong together.",
            ),
            "S6",
            "config.json and the weights do not belong together (model.embed_tokens.weight has "
            "another shape)",
            "stoker serve",
        ),
        (
            (
                "OfflineError: acme/x is not in the local cache and the Hugging Face hub cannot "
                "be reached. Check the network (HTTPS_PROXY, HF_ENDPOINT), or copy the model here.",
            ),
            "B3",
            "the model is not in the local cache and the hub cannot be reached",
            "export HTTPS_PROXY=http://proxy:3128",
        ),
        (
            (
                "ModelError: /m/phi3.gguf: GGUF architecture phi3 is not supported; llama, qwen2, "
                "qwen3, gemma3 are.",
            ),
            "S7",
            "/m/phi3.gguf: GGUF architecture phi3 is not supported; llama, qwen2, qwen3, gemma3 "
            "are",
            "stoker serve smollm2-135m --engine llama.cpp",
        ),
        (
            (
                "ModelError: The Transformers implementation of Gemma4ForConditionalGeneration is "
                "not compatible with Stoker: it is made of several models (text_config).",
            ),
            "S3",
            "The Transformers implementation of Gemma4ForConditionalGeneration is not compatible "
            "with Stoker: it is made of several models (text_config)",
            "stoker serve smollm2-135m --engine vllm",
        ),
        (
            (
                "ModelError: /m/a.safetensors is a file of a kind that cannot be served alone; "
                "give its folder.",
            ),
            "S3",
            "/m/a.safetensors is a file of a kind that cannot be served alone; give its folder",
            "stoker serve smollm2-135m --engine vllm",
        ),
        (
            (
                "ConfigError: --max-model-len 100000 is above the 8192 positions that the "
                "model was "
                "made for; use 8192 or less.",
            ),
            "C7",
            "--max-model-len 100000 is larger than the 8192 positions of the model",
            "stoker serve smollm2-135m --port 8123 --max-model-len 8192",
        ),
        (
            ("ConfigError: --gpu-memory-utilization 2.0 is not in (0, 1].",),
            "S2",
            "--gpu-memory-utilization 2.0 is not in (0, 1]",
            "stoker serve --help",
        ),
        (
            ("Quantised checkpoints (awq) are not supported; use a bf16 one.",),
            "C12",
            "the checkpoint or device does not go with the quantisation awq",
            "stoker serve smollm2-135m --port 8123",
        ),
        (("Something that nobody foresaw.",), "unknown", "Something that nobody foresaw.", None),
    ],
)
def test_failures(errors: tuple[str, ...], cause: str, title: str, command: str | None) -> None:
    report = fail(*errors)
    assert (report.outcome, report.engine) == (Outcome.FAILED, "stoker")
    assert report.problem is not None
    assert (report.problem.id, report.problem.title) == (cause, title)
    commands = [fix.command for fix in report.problem.fixes]
    assert command is None or command in commands


def test_the_error_before_any_other_line_still_tells_the_engine() -> None:
    report = fail("OSError: [Errno 98] Address already in use",
                  "ConfigError: port 8123 is already in use on 127.0.0.1.", before=0)  # fmt: skip
    assert (report.outcome, report.engine) == (Outcome.FAILED, "stoker")
    assert report.problem is not None
    assert report.problem.title == "port 8123 is already in use by another process"


def test_an_unknown_flag() -> None:
    report = parse_lines(
        ["usage: python -m engine serve [-h] MODEL",
         "python -m engine serve: error: unrecognized arguments: --max-modl-len 100"]
    )  # fmt: skip
    assert (report.outcome, report.engine) == (Outcome.FAILED, "stoker")
    assert report.problem is not None
    assert report.problem.title == "unknown flag --max-modl-len (meant --max-model-len?)"
    assert report.problem.fixes[0].text == "spell it --max-model-len 100"


def test_a_traceback_of_the_core_is_the_cause() -> None:
    report = fail(
        "EngineCore failed to start.", "Traceback (most recent call last):",
        '  File "/x/engine/core/engine_core.py", line 40, in __init__', "    self.load()",
        "RuntimeError: shape '[3, 4]' is invalid for input of size 13",
    )  # fmt: skip
    assert report.problem is not None
    assert report.problem.key_line == "RuntimeError: shape '[3, 4]' is invalid for input of size 13"
    assert not report.problem.is_known
    assert (
        report.problem.fixes[0].command
        == "STOKER_LOGGING_LEVEL=DEBUG stoker serve smollm2-135m --port 8123"
    )


def test_death_after_ready() -> None:
    died = [
        "(APIServer pid=70) ERROR 10-03 12:05:00 [client.py:216] [shutdown] MPClient: engine core "
        "exited unexpectedly (exit code -9)",
        "(APIServer pid=70) ERROR 10-03 12:05:00 [async_llm.py:152] EngineCore died: EngineCore is "
        "gone (exit code -9).",
    ]
    report = parse_lines([*START, *died])
    assert (report.outcome, report.died_after_ready) == (Outcome.READY, True)
    assert report.problem is not None
    assert "killed from outside" in report.problem.title
    assert report.problem.key_line_number == len(START) + 1


def test_a_failed_request_is_not_the_death_of_the_server() -> None:
    request = [
        "(APIServer pid=70) ERROR 10-03 12:02:00 [api.py:206] POST /v1/completions failed.",
        "(APIServer pid=70) ERROR 10-03 12:02:00 [api.py:206] Traceback (most recent call last):",
        "(APIServer pid=70) ERROR 10-03 12:02:00 [api.py:206] ValueError: odd",
    ]
    assert parse_lines([*START, *request]).problem is None
    fatal = [
        "(EngineCore pid=71) ERROR 10-03 12:05:00 [p.py:1] EngineCore encountered a fatal error.",
        "(EngineCore pid=71) ERROR 10-03 12:05:00 [p.py:1] Traceback (most recent call last):",
        '(EngineCore pid=71) ERROR 10-03 12:05:00 [p.py:1]   File "m.py", line 1, in step',
        "(EngineCore pid=71) ERROR 10-03 12:05:00 [p.py:1] IndexError: block 7 of 5",
    ]
    report = parse_lines([*START, *request, *fatal])
    assert report.problem is not None
    assert report.problem.key_line == "IndexError: block 7 of 5"


def test_the_known_flags_are_those_of_our_engine() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    EngineArgs.add_cli_args(parser)
    words = {word for action in parser._actions for word in action.option_strings}
    assert {word for word in words if word.startswith("--")} == OWN_FLAGS


ENGINE = ROOT / "engine"
# Their text is made elsewhere: the error itself, a line of uvicorn's, figures of other lines.
MADE_ELSEWHERE = {"%s", "%s: %s", "OSError: %s", "ConfigError: %s"}
VALUES = {  # of the placeholders, where a rule looks at them
    "non-default args: %s": "{'model': 'm'}",
    "Resolved architecture: %s": "LlamaForCausalLM",
    "Supported tasks: %s": "('generate',)",
    "Waiting for process %d, which measures %s; its turn comes first.": "the free RAM",
    "Other starts are not waited for while %s is measured: %s": "the free RAM",
    "Using %s attention backend out of potential backends: %s.": "NATIVE",
    "%s %s failed.": "POST",
    "%s is down: %d of its requests failed.": "EngineCore_DP1",
    "%s is started again (%d of %d).": "ApiServer_0",
    "%s did not start: %s": "ApiServer_0",
    "%s (pid %d) serves again.": "DPCoordinator",
    "[shutdown] %s still running; sending SIGKILL": "ApiServer_0",
    "Triton kernels are used with the tiles of %s.": "sm_90",
    "%s is an actor of Ray.": "Worker_PP1 (node 10.0.0.2, ce4a305e, pid 10812)",
    "world_size=%d rank=%d local_rank=%d distributed_init_method=%s backend=%s": "a backend=gloo",
    "Node %d at %s is refused: %s": "10.0.0.2",
    "Node serves node 0 at %s with %s.": "10.0.0.1",
    "Node 0 at %s is gone%s.": "10.0.0.1",
    "%s has joined.": "Node 1 (10.0.0.2)",
    "%s has gone again.": "Node 1 (10.0.0.2)",
    "%s has ended (exit code: %s).": "Worker_TP1",
}


def logged() -> list[str]:
    """The text of each line above DEBUG that the engine's source can log."""
    texts = []
    for path in sorted(ENGINE.rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            is_level = call.func.attr in ("info", "warning", "error", "exception", "critical")
            at = 0 if is_level else 1
            if not (is_level or call.func.attr == "log") or "log" not in ast.unparse(
                call.func.value
            ):
                continue
            text = call.args[at] if len(call.args) > at else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                texts.append(text.value)
    return texts


def test_every_line_that_our_engine_logs_is_known() -> None:
    texts = logged()
    assert len(texts) > 50
    unknown = []
    for text in texts:
        shown = re.sub(r"%(?:\.\d+)?f|%,?d", "7", text)
        shown = re.sub(r"(?<=[ (])%s(?= GiB)", "1.5", shown)
        shown = shown.replace("%s", VALUES.get(text, "/w/x"), 1).replace("%s", "/w/x")
        line = f"(EngineCore pid=7) INFO 10-03 12:00:00 [a.py:1] {shown}"
        if text not in MADE_ELSEWHERE and not explain_line(line).meanings:
            unknown.append(text)
    assert unknown == []


def test_a_warning_of_our_engine_is_ranked_and_explained() -> None:
    said = (
        "org/x runs in the Transformers implementation, which is slower than one of Stoker's own."
    )
    lines = [*START, f"(EngineCore pid=71) WARNING 10-03 12:00:04 [worker.py:165] {said}"]
    (warning,) = parse_lines(lines).insight.warnings
    assert (warning.id, warning.line) == ("own-transformers-model", said)


def test_a_rank_that_goes_astray_is_the_cause() -> None:
    said = (
        "Worker proc Worker_TP1 disagrees with Worker_TP0: in step 7 it computed other tokens or "
        "used other blocks, shutting down executor."
    )
    died = [
        f"(EngineCore pid=71) ERROR 10-03 12:05:00 [m.py:1] {said}",
        "(EngineCore pid=71) ERROR 10-03 12:05:00 [m.py:2] last lines of Worker_TP1: 12:04:59 so",
        "(EngineCore pid=71) ERROR 10-03 12:05:00 [p.py:1] EngineCore encountered a fatal error.",
        f"(EngineCore pid=71) ERROR 10-03 12:05:00 [p.py:2] RankError: {said}",
    ]
    problem = parse_lines([*START, *died]).problem
    assert problem is not None
    assert problem.title == (
        "the process Worker_TP1 disagrees with Worker_TP0: in step 7 it computed other tokens or "
        "used other blocks"
    )
