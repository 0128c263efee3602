"""Requests that a running server refused or lost are told, and never are why a start failed."""

from __future__ import annotations

import pytest

from logparse import Outcome, parse_lines
from logparse.problems.request_errors import REQUEST_ERRORS
from logparse.report.line_meaning import explain_line

API = "(APIServer pid=7) "
READY = [
    API + "INFO 10-03 12:00:00 [api_utils.py:1] vLLM API server version 0.30.0",
    API + "INFO 10-03 12:00:01 [entry.py:1] Starting vLLM server on http://0.0.0.0:8000",
    API + "INFO:     Application startup complete.",
]


def access(status: str, path: str = "POST /v1/chat/completions") -> str:
    return f'{API}INFO:     10.0.0.1:4000 - "{path} HTTP/1.1" {status}'


def raised(error: str) -> list[str]:
    head = API + "ERROR 10-03 12:01:00 [serving.py:1] "
    return [
        head + "Error in preprocessing prompt inputs",
        head + "Traceback (most recent call last):",
        head + '  File "/v/serving.py", line 3, in create_chat_completion',
        head + error,
    ]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([access("200 OK")], None),
        ([access("400 Bad Request")], "request-refused"),
        ([access("401 Unauthorized")], "request-unauthorized"),
        ([access("404 Not Found", "GET /favicon.ico")], "request-no-route"),
        ([access("405 Method Not Allowed")], "request-no-route"),
        ([access("422 Unprocessable Entity")], "request-refused"),
        ([access("500 Internal Server Error")], "request-server-fault"),
        ([access("503 Service Unavailable")], "request-busy"),
        (
            raised("ValueError: This model's maximum context length is 4096 tokens. However, you "
                   "requested 100 output tokens and your prompt contains 5000 input tokens"),
            "request-too-long",
        ),
        (
            raised("ValueError: The decoder prompt (length 5000) is longer than the maximum model "
                   "length of 4096. Make sure that `max_model_len` is no smaller"),
            "request-too-long",
        ),
        (
            ["srv  send_error: task id = 0, error: request (9000 tokens) exceeds the available "
             "context size (4096 tokens), try increasing it"],
            "request-too-long",
        ),
        (raised("NotFoundError: The model `gpt-4` does not exist."), "request-unknown-model"),
        (
            raised("ValueError: As of transformers v4.44, default chat template is no longer "
                   "allowed, so you must provide a chat template"),
            "request-no-template",
        ),
        (
            raised('BadRequestError: "auto" tool choice requires --enable-auto-tool-choice and '
                   "--tool-call-parser to be set"),
            "request-tools",
        ),
        (raised("ValueError: At most 1 image(s) may be provided in one prompt."), "request-media"),
        (raised("ValueError: temperature must be in [0, 2], got 3.0."), "request-parameter"),
        (raised("ValueError: Token id 99999 is out of vocabulary"), "request-parameter"),
        (
            [API + "ERROR 10-03 12:01:00 [structured_output.py:69] Grammar of request cmpl-1 "
             "failed: lark error"],
            "request-schema",
        ),
    ],
)  # fmt: skip
def test_a_request_error(lines: list[str], found: str | None) -> None:
    report = parse_lines([*READY, *lines])
    assert (report.outcome, report.problem) == (Outcome.READY, None)
    warnings = report.insight.warnings
    assert [warning.id for warning in warnings] == ([found] if found else [])


def test_before_the_server_is_ready_an_error_is_no_request_error() -> None:
    error = raised("ValueError: temperature must be in [0, 2], got 3.0.")
    report = parse_lines([*READY[:1], *error])
    assert report.outcome is Outcome.FAILED
    assert report.insight.warnings == ()


def test_each_is_counted_and_told_once() -> None:
    report = parse_lines([*READY, *[access("404 Not Found")] * 5, access("500 Internal Error")])
    assert [(w.id, w.count, w.line_number) for w in report.insight.warnings] == [
        ("request-server-fault", 1, 9),
        ("request-no-route", 5, 4),
    ]


def test_a_single_line_is_explained() -> None:
    (meaning,) = explain_line(access("404 Not Found")).meanings
    assert (meaning.rule_id, meaning.values["status"]) == ("access", 404)
    (meaning,) = explain_line("ValueError: Token id 9 is out of vocabulary").meanings
    assert meaning.rule_id == "request-parameter"
    (meaning,) = explain_line("torch.OutOfMemoryError: CUDA out of memory. Tried to").meanings
    assert meaning.rule_id.startswith("A")


def test_ids_are_unique() -> None:
    assert len({rule.id for rule in REQUEST_ERRORS}) == len(REQUEST_ERRORS)
