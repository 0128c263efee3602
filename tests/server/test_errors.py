from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.server.http.body_limits import MAX_BODY_BYTES
from tests.server.fake_core import FakeCore
from tests.server.serving import MODEL, Served, serving

ASK: Any = [{"role": "user", "content": "Hi"}]


def _error(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    document = response.json()
    assert set(document) == {"error"}
    assert set(document["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = document["error"]
    return error


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", "hot"),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", -2),
        ("top_k", 10**30),
        ("min_p", 2),
        ("seed", 2**63),
        ("seed", 1.5),
        ("max_tokens", 0),
        ("max_tokens", 10**40),
        ("max_tokens", 500),
        ("min_tokens", 501),
        ("stop", ["a"] * 5),
        ("stop", [""]),
        ("stop", 3),
        ("stop_token_ids", [258]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", ["x"]),
        ("n", 0),
        ("n", 129),
        ("stream", "maybe"),
        ("priority", 2**40),
        ("frequency_penalty", 2.5),
        ("presence_penalty", -2.1),
        ("repetition_penalty", 0),
        ("repetition_penalty", 1e39),
        ("logit_bias", {"1": 101}),
        ("logit_bias", {"258": 1}),
        ("logit_bias", {"Paris": 1}),
        ("logit_bias", [1]),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [258]),
        ("bad_words", [""]),
        ("bad_words", ["x"] * 129),
        ("bad_words", "x"),
        ("logprobs", "many"),
        ("top_logprobs", 3),
        ("prompt_logprobs", 21),
        ("prompt_logprobs", -1),
        ("response_format", {"type": "xml"}),
        ("structured_outputs", {"regex": "(a"}),
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", "required"),
        ("best_of", 2),
        ("chat_template", "{{ 1 }}"),
        ("functions", [{"name": "f"}]),
        ("web_search_options", {}),
        ("audio", {"voice": "alloy"}),
        ("modalities", ["text", "audio"]),
        ("truncate_prompt_tokens", 513),
        ("messages", []),
        ("messages", "Hi"),
        ("messages", [{"content": "Hi"}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]),
        ("messages", [{"role": "user", "content": [{"type": "text"}]}]),
        ("messages", [{"role": "user", "content": {"a": 1}}]),
        ("messages", [{"role": "user", "content": "x" * 600}]),
    ],
)
async def test_bad_chat_fields_are_named(served: Served, field: str, value: object) -> None:
    body = {"messages": ASK, "temperature": 1.0, field: value}
    error = _error(await served.http.post("/v1/chat/completions", json=body), 400)
    assert error["type"] == "BadRequestError"
    assert error["param"].split(".")[0] == field
    assert (
        field in error["message"]
        or "maximum context length" in error["message"]
        or (field == "messages")
    )
    assert served.core.requests == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("top_logprobs", 0),
        ("bad_words", []),
        ("frequency_penalty", 0),
        ("presence_penalty", 0.0),
        ("logit_bias", {}),
        ("logprobs", False),
        ("response_format", {"type": "text"}),
        ("tools", []),
        ("tool_choice", "auto"),
        ("user", "someone"),
        ("stop", None),
        ("temperature", None),
        ("max_tokens", None),
        ("stream_options", None),
        ("parallel_tool_calls", True),
        ("metadata", {"a": "b"}),
    ],
)
async def test_values_that_ask_for_nothing_are_fine(
    served: Served, field: str, value: object
) -> None:
    response = await served.http.post("/v1/chat/completions", json={"messages": ASK, field: value})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, 258]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [[1, False]]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": ["a"] * 129}, "n"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "logprobs": -1}, "logprobs"),
        ({"prompt": "a", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 3}, "best_of"),
        ({"prompt": "a", "n": 2, "temperature": 0}, "n"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options"),
        ({"prompt": "a", "stream": True, "max_tokens": 900}, "max_tokens"),
    ],
)
async def test_bad_completions(served: Served, body: dict[str, Any], param: str) -> None:
    error = _error(await served.http.post("/v1/completions", json=body), 400)
    assert error["param"].split(".")[0] == param
    assert served.core.requests == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b'{"prompt": "\\ud800"}',
        b"[" * 10_000,
        b'{"prompt": ' + b"[" * 10_000,
        b'{"prompt": "a", "max_tokens": NaN}',
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
        b'{"prompt": "a", "max_tokens": ' + b"9" * 400 + b"}",
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize", "/detokenize"])
async def test_bodies_that_are_no_request(served: Served, path: str, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    response = await served.http.post(path, content=body, headers=headers)
    if path == "/tokenize" and response.status_code == 200:
        assert json.loads(body.replace(b"NaN", b"0").replace(b"Infinity", b"0"))["prompt"] == "a"
        return
    _error(response, 400)


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"prompt": ' + b"[" * 100_000])
async def test_bodies_of_too_many_lists(served: Served, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    response = await served.http.post("/v1/completions", content=body, headers=headers)
    assert "JSON values" in _error(response, 413)["message"]


async def test_content_type_is_required(served: Served) -> None:
    content = json.dumps({"prompt": "a"}).encode()
    for headers in ({}, {"content-type": "text/plain"}):
        response = await served.http.post("/v1/completions", content=content, headers=headers)
        assert "application/json" in _error(response, 400)["message"]
    headers = {"content-type": "application/json; charset=utf-8"}
    response = await served.http.post("/v1/completions", content=content, headers=headers)
    assert response.status_code == 200


async def test_body_beyond_the_limit(served: Served) -> None:
    async def endless() -> AsyncGenerator[bytes, None]:
        for _ in range(MAX_BODY_BYTES // (1 << 20) + 2):
            yield b" " * (1 << 20)

    headers = {"content-type": "application/json"}
    response = await served.http.post("/v1/completions", content=endless(), headers=headers)
    assert str(MAX_BODY_BYTES) in _error(response, 413)["message"]


async def test_unknown_model_route_and_method(served: Served) -> None:
    body = {"prompt": "a", "model": "gpt-4"}
    error = _error(await served.http.post("/v1/completions", json=body), 404)
    assert error["code"] == "model_not_found"
    assert MODEL in error["message"]
    assert "/v1/nothing" in _error(await served.http.get("/v1/nothing"), 404)["message"]
    response = await served.http.get("/v1/completions")
    assert "POST" in response.headers["allow"]
    _error(response, 405)


async def test_unexpected_failure_is_answered_and_logged(
    served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(served.llm.tokenizer, "encode", None)
    error = _error(await served.http.post("/tokenize", json={"prompt": "a"}), 500)
    assert "NoneType" not in error["message"]


async def test_model_without_chat_template(tiny_folder: Path, tmp_path: Path) -> None:
    for path in tiny_folder.iterdir():
        if path.name != "tokenizer_config.json":
            (tmp_path / path.name).symlink_to(path)
    async with serving(tmp_path, FakeCore([1])) as served:
        response = await served.http.post("/v1/chat/completions", json={"messages": ASK})
        assert "/v1/completions" in _error(response, 400)["message"]


async def test_too_many_logprobs_name_the_limit(served: Served) -> None:
    body = {"messages": ASK, "logprobs": True, "top_logprobs": 21}
    error = _error(await served.http.post("/v1/chat/completions", json=body), 400)
    assert error["param"] == "top_logprobs"
    assert error["message"] == "top_logprobs must be in [0, 20], got 21."
