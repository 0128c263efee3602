"""Failures that no rule describes: what the structure alone tells."""

from __future__ import annotations

import pytest

from logparse import Problem, parse_lines
from tests.logparse.vllm_lines import CORE


def problem_of(error: str, *frames: str) -> Problem:
    """Each frame is `path in function: code`."""
    lines = ["Traceback (most recent call last):"]
    for frame in frames:
        path, _, rest = frame.partition(" in ")
        function, _, code = rest.partition(": ")
        lines += [f'  File "{path}", line 7, in {function}', *([f"    {code}"] if code else [])]
    report = parse_lines(
        [
            "INFO 10-03 12:00:00 [api_server.py:1] vLLM API server version 0.9.1",
            "INFO 10-03 12:00:00 [a.py:1] non-default args: {'model': 'o/m', 'seed': 7}",
            *(CORE + line for line in (*lines, *error.split("\n"))),
        ]
    )
    assert report.problem is not None
    assert not report.problem.is_known
    return report.problem


@pytest.mark.parametrize(
    ("error", "frames", "touched", "command"),
    [
        ("TypeError: frob() got an unexpected keyword argument 'x'", ("/v/a.py in f",),
         "a package", "pip check"),
        ("FrobConnectTimeout: no answer", ("/v/a.py in f",), "the network", "HF_HUB_OFFLINE=1 "
         "vllm serve o/m --seed 7"),
        ("RuntimeError: frob", ("/lib/huggingface_hub/frob.py in get",), "the network",
         "curl -sI https://huggingface.co"),
        ("RuntimeError: the CUDA frob is odd", ("/v/a.py in f",), "the GPU", "nvidia-smi"),
        ("RuntimeError: frob", ("/lib/torch/distributed/frob.py in g",), "talk to each other",
         "NCCL_DEBUG=INFO vllm serve o/m --seed 7"),
        ("RuntimeError: frob", ("/lib/triton/frob.py in g",), "compiled at run time",
         "vllm serve o/m --seed 7 --enforce-eager"),
        ("ValueError: frob", ("/lib/transformers/tokenization_frob.py in g",), "the tokenizer",
         "pip install -U tokenizers sentencepiece tiktoken transformers"),
        ("ValueError: frob", ("/lib/vllm/model_executor/model_loader/frob.py in g",),
         "the weights", "ls -lh o/m"),
        ("FileExistsError: '/data/frob'", ("/v/a.py in g",), "a file", "ls -l /data/frob"),
        ("ValueError: frob", ("/lib/vllm/config/frob.py in g",), "a setting", "vllm serve --help"),
        ("ValueError: frob", ("/lib/vllm/model_executor/models/frob.py in g",),
         "the model's own code", "vllm serve o/m --seed 7 --model-impl transformers"),
    ],
)  # fmt: skip
def test_the_kind_of_thing(error: str, frames: tuple[str, ...], touched: str, command: str) -> None:
    problem = problem_of(error, *frames)
    assert f"It has to do with {touched}" in problem.why or touched in problem.why
    assert command in [fix.command for fix in problem.fixes]
    assert problem.fixes[-1].command == "VLLM_LOGGING_LEVEL=DEBUG vllm serve o/m --seed 7"


def test_the_engines_own_frame_is_named_beside_the_deepest() -> None:
    problem = problem_of(
        "FrobError: odd", "/lib/vllm/v1/frob.py in start", "/lib/other/x.py in deep"
    )
    assert "raised in /lib/other/x.py:7 in deep" in problem.why
    assert "called from /lib/vllm/v1/frob.py:7 in start" in problem.why


@pytest.mark.parametrize("error", ["AssertionError", "FrobError: 'x'", "RuntimeError:"])
def test_a_bare_exception_is_shown_with_the_code_that_raised_it(error: str) -> None:
    problem = problem_of(error, "/v/a.py in f: call(1)", "/v/b.py in g: assert frob == 3")
    assert problem.key_line == error
    assert problem.title == f"{error.rstrip(':')} at `assert frob == 3`"


def test_what_can_be_read_is_not_hidden_by_code() -> None:
    assert problem_of("FrobError: too odd", "/v/a.py in f: frob()").title == "FrobError: too odd"


def test_a_wrapper_that_quotes_the_cause() -> None:
    report = parse_lines(
        [
            CORE + "Traceback (most recent call last):",
            CORE + '  File "/v/x.py", line 3, in get_response',
            CORE + "RuntimeError: Worker failed with error 'no frob in here', please check the "
            "stack trace above for the root cause",
        ]
    )
    assert report.problem is not None
    assert report.problem.title == "no frob in here"
    assert report.problem.key_line.startswith("RuntimeError: Worker failed with error")
    assert "does not show why" not in report.problem.title


def test_a_quoted_cause_that_is_known() -> None:
    report = parse_lines(
        [
            CORE + "Traceback (most recent call last):",
            CORE + "RuntimeError: Worker failed with error 'CUDA error: out of memory', please "
            "check the stack trace above for the root cause",
        ]
    )
    assert report.problem is not None
    assert report.problem.is_known


def test_the_workers_own_line_comes_before_the_wrapper() -> None:
    worker = "(Worker_TP0 pid=3) ERROR 10-03 12:00:04 [m.py:9] "
    report = parse_lines(
        [
            worker + "Traceback (most recent call last):",
            worker + "FrobError: the cause",
            CORE + "Traceback (most recent call last):",
            CORE + "RuntimeError: Worker failed with error 'the cause', please check the stack "
            "trace above for the root cause",
        ]
    )
    assert report.problem is not None
    assert report.problem.key_line == "FrobError: the cause"


def test_a_field_of_the_configuration() -> None:
    report = parse_lines(
        [
            "INFO 10-03 12:00:00 [api_server.py:1] vLLM API server version 0.9.1",
            "Traceback (most recent call last):",
            '  File "/v/x.py", line 3, in main',
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for FrobConfig",
            "frob_size",
            "  Input should be a valid integer [type=int_parsing, input_value='x', input_type=str]",
            "    For further information visit https://errors.example",
        ]
    )
    assert report.problem is not None
    assert report.problem.title == "frob_size: Input should be a valid integer, not 'x'"
    assert report.problem.key_line_number == 6
