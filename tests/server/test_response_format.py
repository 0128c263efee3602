"""Structured output at the API: every spelling arrives as one spec, and bad ones are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.sampling_params import StructuredOutputsParams
from engine.server.protocol import ChatBody, CompletionBody, parse_body
from engine.server.structured import structured_outputs_of
from tests.server.fake_core import FakeCore
from tests.server.serving import MODEL, Served, serving

ASK: Any = [{"role": "user", "content": "Hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
# llguidance panics on it: it cuts the text for its message at byte 100, inside a character.
PANICS = {"patternProperties": "é" * 100}
AS_JSON = StructuredOutputsParams(json=json.dumps(SCHEMA))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"response_format": None}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, StructuredOutputsParams(json_object=True)),
        ({"response_format": FORMAT}, AS_JSON),
        (
            {
                "response_format": {
                    **FORMAT,
                    "json_schema": {**FORMAT["json_schema"], "strict": True},
                }
            },
            AS_JSON,
        ),
        ({"structured_outputs": {"json": SCHEMA}}, AS_JSON),
        ({"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None}}, AS_JSON),
        ({"structured_outputs": {"regex": "a+"}}, StructuredOutputsParams(regex="a+")),
        (
            {"structured_outputs": {"choice": ["a", "b"]}},
            StructuredOutputsParams(choice=("a", "b")),
        ),
        (
            {"structured_outputs": {"grammar": 'start: "a"'}},
            StructuredOutputsParams(grammar='start: "a"'),
        ),
        (
            {"structured_outputs": {"json_object": True}},
            StructuredOutputsParams(json_object=True),
        ),
        ({"guided_json": SCHEMA}, AS_JSON),
        ({"guided_regex": "a+"}, StructuredOutputsParams(regex="a+")),
        ({"guided_choice": ["a", "b"]}, StructuredOutputsParams(choice=("a", "b"))),
        (
            {"guided_grammar": 'root ::= "a"', "response_format": {"type": "text"}},
            StructuredOutputsParams(grammar='root ::= "a"'),
        ),
    ],
)
def test_every_spelling_becomes_one_spec(fields: dict[str, Any], expected: object) -> None:
    for kind, prompt in ((ChatBody, {"messages": ASK}), (CompletionBody, {"prompt": "x"})):
        body = parse_body(kind, json.dumps({**prompt, **fields}).encode())
        assert structured_outputs_of(body) == expected
        assert body.sampling_params({}).structured_outputs == expected


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
            "required",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}},
            "response_format",
            "Invalid type: x",
        ),
        ({"structured_outputs": {"json": {"not": {}}}}, "structured_outputs.json", "not"),
        ({"structured_outputs": {"json": "[1]"}}, "structured_outputs.json", "JSON object"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "not valid JSON"),
        ({"structured_outputs": {"json": "[" * 9999}}, "structured_outputs.json", "JSON"),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex", "unclosed"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "empty"),
        ({"structured_outputs": {"grammar": "?"}}, "structured_outputs.grammar", "grammar"),
        ({"structured_outputs": {}}, "structured_outputs", "empty"),
        ({"guided_json": PANICS}, "guided_json", "cannot be turned"),
        (
            {"structured_outputs": {"json_object": True, "structural_tag": "x"}},
            "structured_outputs.structural_tag",
            "null",
        ),
        ({"guided_regex": "(?=a)"}, "guided_regex", "look-ahead"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "got 2"),
        ({"guided_json": {}, "response_format": FORMAT}, "guided_json", "got 2"),
        ({"structured_outputs": {"regex": "a", "json_object": True}}, "", "got 2"),
    ],
)
async def test_bad_structures_are_refused_before_anything_is_queued(
    served: Served, fields: dict[str, Any], param: str, reason: str
) -> None:
    for stream in (False, True):
        body = {"messages": ASK, "stream": stream, **fields}
        answer = await served.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["type"] == "BadRequestError"
        assert error["param"].startswith(param)
        assert reason in error["message"]
    assert served.core.requests == []


async def test_numbers_that_json_lacks_are_refused(served: Served) -> None:
    body = b'{"prompt": "x", "guided_json": {"type": "number", "minimum": NaN}}'
    answer = await served.http.post(
        "/v1/completions", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 400
    assert served.core.requests == []


async def test_each_sample_carries_the_structure(served: Served) -> None:
    body = {"messages": ASK, "n": 3, "max_tokens": 4, "response_format": FORMAT}
    assert (await served.http.post("/v1/chat/completions", json=body)).status_code == 200
    specs = [request.sampling_params.structured_outputs for request in served.core.requests]
    assert specs == [AS_JSON] * 3


async def test_the_openai_client_sends_it(tiny_folder: Path, answer_ids: list[int]) -> None:
    async with serving(tiny_folder, FakeCore(answer_ids)) as running:
        chat = running.openai.chat.completions
        await chat.create(model=MODEL, messages=ASK, max_tokens=2, response_format=FORMAT)
        stream = await chat.create(
            model=MODEL, messages=ASK, max_tokens=2, response_format=FORMAT, stream=True
        )
        assert [chunk async for chunk in stream]
        specs = [item.sampling_params.structured_outputs for item in running.core.requests]
        assert specs == [AS_JSON] * 2
