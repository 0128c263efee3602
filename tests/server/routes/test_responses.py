"""The Responses API through OpenAI's own client; the core is scripted."""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import responses as types
from openai.types import shared_params
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params

from engine.errors import RequestError
from engine.frontend.tokenizer import Tokenizer
from engine.server.protocol import ChatBody
from engine.server.protocol_responses import Functions, ResponsesBody
from tests.server.fake_core import READY, FakeCore
from tests.server.serving import (
    MODEL,
    Served,
    documented_words,
    named_events,
    prompt_of,
    serving,
)
from tests.tiny_model import EOS

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "Weather of a city",
    "parameters": PARAMETERS,
    "strict": False,
}
NOW: Any = {"type": "function", "name": "now", "parameters": {}, "strict": False}
TOOLS: Any = [WEATHER, NOW]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris 🗼"}}\n</tool_call>'
TWO_CALLS = f'I look.\n{CALL}\n<tool_call>{{"name": "now", "arguments": {{}}}}</tool_call>'
THOUGHT = "<think>\nTwo and two.\n</think>\n\n"


def answering(
    folder: Path, text: str, core: FakeCore | None = None, **options: Any
) -> AbstractAsyncContextManager[Served]:
    """A server whose model always writes `text`."""
    ids = Tokenizer.from_folder(folder).encode(text, add_special_tokens=False)
    return serving(
        folder, core or FakeCore([*ids, EOS]), **{"tool_call_parser": "hermes", **options}
    )


async def whole_and_streamed(served: Served, **options: Any) -> Any:
    """The response, which is the same both ways, in what the client puts together, too."""
    body = {"model": MODEL, "input": "Weather?", **options}
    whole = await served.openai.responses.create(**body)
    pieces = ""
    async with served.openai.responses.stream(**body) as stream:
        async for event in stream:
            if event.type in ("response.output_text.delta", "response.reasoning_text.delta"):
                pieces += event.delta
            last: Any = event
        streamed = last.response
    unlike: Any = {"id": True, "created_at": True, "completed_at": True}
    unlike["output"] = {
        "__all__": {
            "id": True,
            "call_id": True,
            "parsed_arguments": True,
            "content": {"__all__": {"parsed"}},
        }
    }
    assert streamed.model_dump(exclude=unlike) == whole.model_dump(exclude=unlike)
    texts = [part.text for item in whole.output for part in getattr(item, "content", None) or []]
    assert pieces == "".join(texts)
    return whole


async def test_a_text_whole_and_streamed(tiny_folder: Path) -> None:
    async with answering(tiny_folder, "Paris. 🗼") as served:
        response = await whole_and_streamed(
            served, instructions="Be brief.", temperature=0.5, metadata={"a": "b"}, store=False
        )
        assert response.output_text == "Paris. 🗼"
        assert response.status == "completed"
        assert response.metadata == {"a": "b"}
        assert response.temperature == 0.5
        assert response.error is None
        assert response.store is False
        prompt = len(served.core.requests[-1].prompt_token_ids)
        assert prompt_of(served) == "<s>system: Be brief.</s><s>user: Weather?</s><s>assistant: "
        usage = response.usage
        assert (usage.input_tokens, usage.output_tokens) == (prompt, len("Paris. 🗼".encode()) + 1)
        assert usage.total_tokens == usage.input_tokens + usage.output_tokens


async def test_events_come_in_the_order_of_the_api(tiny_folder: Path) -> None:
    async with answering(
        tiny_folder, f"{THOUGHT}I look.{CALL}", reasoning_parser="qwen3"
    ) as served:
        body = {"input": "Weather?", "tools": TOOLS, "stream": True}
        text = (await served.http.post("/v1/responses", json=body)).text
    kinds, events = named_events(text)
    assert kinds == [event["type"] for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    order = [kind for kind, before in zip(kinds, [None, *kinds], strict=False) if kind != before]
    assert [kind.removeprefix("response.") for kind in order] == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done", "completed"),
    ]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]


async def test_calls_come_as_items(tiny_folder: Path) -> None:
    async with answering(tiny_folder, TWO_CALLS) as served:
        response = await whole_and_streamed(served, tools=TOOLS)
        text, weather, now = response.output
        assert text.content[0].text == "I look.\n"
        assert (weather.type, weather.name) == ("function_call", "weather")
        assert json.loads(weather.arguments) == {"city": "Paris 🗼"}
        assert weather.call_id.startswith("call_")
        assert (now.name, now.arguments) == ("now", "{}")
        one = await whole_and_streamed(served, tools=TOOLS, parallel_tool_calls=False)
        assert [item.type for item in one.output] == ["message", "function_call"]


@pytest.mark.parametrize(
    ("choice", "answer"),
    [
        ("required", '[{"name": "weather", "parameters": {"city": "Rome"}}]'),
        ({"type": "function", "name": "weather"}, '{"city": "Rome"}'),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "weather"}],
            },
            '[{"name": "weather", "parameters": {"city": "Rome"}}]',
        ),
    ],
)
async def test_a_required_call(tiny_folder: Path, choice: Any, answer: str) -> None:
    async with answering(tiny_folder, answer, tool_call_parser=None) as served:
        response = await whole_and_streamed(served, tools=TOOLS, tool_choice=choice)
        (call,) = response.output
        assert (call.name, call.arguments) == ("weather", '{"city": "Rome"}')
        grammar = served.core.requests[-1].sampling_params.structured_outputs
        assert grammar is not None


async def test_thoughts_come_as_items(tiny_folder: Path) -> None:
    async with answering(tiny_folder, f"{THOUGHT}Four.", reasoning_parser="qwen3") as served:
        response = await whole_and_streamed(served, reasoning={"effort": "high"})
        thought, answer = response.output
        assert (thought.type, thought.content[0].text) == ("reasoning", "Two and two.")
        assert (answer.content[0].text, response.output_text) == ("Four.", "Four.")
        assert response.usage.output_tokens_details.reasoning_tokens > 0
        again = [
            {"role": "user", "content": "2+2?"},
            *(item.model_dump(exclude_none=True) for item in response.output),
            {"role": "user", "content": "Sure?"},
        ]
        await whole_and_streamed(served, input=again)
        assert prompt_of(served).endswith("assistant: Four.</s><s>user: Sure?</s><s>assistant: ")


async def test_the_answer_follows_a_format(tiny_folder: Path) -> None:
    form: Any = {"type": "json_schema", "name": "city", "schema": PARAMETERS, "strict": True}
    async with answering(tiny_folder, '{"city": "Rome"}') as served:
        response = await whole_and_streamed(served, text={"format": form, "verbosity": "low"})
        assert response.text.format.type == "json_schema"
        grammar = served.core.requests[-1].sampling_params.structured_outputs
        assert grammar is not None
        await whole_and_streamed(served, text={"format": {"type": "json_object"}})


async def test_logprobs_belong_to_the_text(tiny_folder: Path) -> None:
    async with answering(tiny_folder, "Hi") as served:
        response = await whole_and_streamed(
            served, top_logprobs=2, include=["message.output_text.logprobs"]
        )
        logprobs = response.output[0].content[0].logprobs
        assert [entry.token for entry in logprobs[:2]] == ["H", "i"]
        assert [len(entry.top_logprobs) for entry in logprobs] == [2, 2, 2]


async def test_an_answer_that_was_cut_is_incomplete(tiny_folder: Path) -> None:
    async with answering(tiny_folder, "", core=FakeCore([65])) as served:
        response = await whole_and_streamed(served, max_output_tokens=5)
        assert (response.status, response.incomplete_details.reason) == (
            "incomplete",
            "max_output_tokens",
        )
        assert response.output[0].status == "incomplete"
        assert response.max_output_tokens == 5
        longest = await whole_and_streamed(served, max_output_tokens=100_000)
        room = READY.max_model_len - longest.usage.input_tokens
        assert (longest.usage.output_tokens, longest.max_output_tokens) == (room, room)


async def test_a_long_input_is_refused_or_cut(tiny_folder: Path) -> None:
    async with answering(tiny_folder, "Hi") as served:
        with pytest.raises(openai.BadRequestError) as caught:
            await served.openai.responses.create(model=MODEL, input="long " * 200)
        assert (caught.value.param, caught.value.code) == ("input", "context_length_exceeded")
        response = await whole_and_streamed(served, input="long " * 200, truncation="auto")
        assert response.usage.input_tokens == READY.max_model_len - READY.max_model_len // 2
        assert response.usage.output_tokens > 1
        assert response.to_dict()["text"] == {"format": {"type": "text"}}


async def test_what_an_agent_sends_first(
    tiny_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The fields of a coding agent's first request, with content of our own."""
    body = {
        "model": MODEL,
        "stream": True,
        "input": [
            {
                "type": "message",
                "id": "msg_1",
                "role": "developer",
                "content": [{"type": "input_text", "text": "Be an agent."}],
            },
            {
                "type": "message",
                "role": "developer",
                "content": [
                    {"type": "input_text", "text": "Skills."},
                    {"type": "input_text", "text": "Rights."},
                ],
            },
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "Here."}],
            },
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "List."}],
            },
        ],
        "tools": [
            *TOOLS,
            {"type": "namespace", "name": "agents", "description": "x", "tools": [NOW, WEATHER]},
            {"type": "web_search", "external_web_access": False},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "client_metadata": {"session_id": "s"},
    }
    call = CALL.replace("weather", "agents__weather")
    async with answering(tiny_folder, call) as served:
        answer = await served.http.post("/v1/responses", json=body)
        assert answer.status_code == 200, answer.text
        assert prompt_of(served) == (
            "<s>system: Be an agent.\n\nSkills.\nRights.</s><s>user: Here.\n\nList.</s>"
            "<s>assistant: "
        )
        event = next(e for e in answer.text.split("\n\n") if "output_item.done" in e)
        item = json.loads(event.partition("data: ")[2])["item"]
        assert (item["name"], item["namespace"]) == ("weather", "agents")
        assert "web_search" in caplog.text


def test_calls_and_results_of_earlier_turns() -> None:
    items = [
        {"role": "user", "content": "Weather?"},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm."}],
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [
                {"type": "output_text", "text": "I look.", "annotations": []},
                {"type": "refusal", "refusal": "Not there."},
            ],
        },
        {"type": "function_call", "call_id": "a", "name": "weather", "arguments": '{"city": "R"}'},
        {
            "type": "function_call",
            "call_id": "b",
            "name": "now",
            "namespace": "agents",
            "arguments": "",
        },
        {"type": "function_call_output", "call_id": "a", "output": "Sun"},
        {
            "type": "function_call_output",
            "call_id": "b",
            "output": [
                {"type": "input_text", "text": "12:00"},
                {"type": "input_image", "image_url": "data:x"},
            ],
        },
    ]
    tools = [NOW, {"type": "namespace", "name": "agents", "tools": [NOW]}]
    body = ResponsesBody.model_validate({"input": items, "tools": tools})
    chat = body.chat(Functions(body.tools, body.tool_choice))
    messages = [message.for_template() for message in chat.messages]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
    _, said, sun, time = messages
    assert (said["content"], said["reasoning_content"]) == ("I look.\nNot there.", "Hm.")
    calls = [call["function"] for call in said["tool_calls"]]
    assert calls == [
        {"name": "weather", "arguments": {"city": "R"}},
        {"name": "agents__now", "arguments": {}},
    ]
    assert (sun["content"], sun["name"], sun["tool_call_id"]) == ("Sun", "weather", "a")
    assert time["content"].startswith("12:00\n[input_image left out")


def test_functions_of_a_namespace_give_way_wherever_they_stand() -> None:
    groups = [{"type": "namespace", "name": name, "tools": [NOW]} for name in ("a", "b")]
    functions = Functions([groups[0], NOW, groups[1]], "auto")
    names = [tool["function"]["name"] for tool in functions.definitions]
    assert names == ["a__now", "now", "b__now"]
    assert [functions.origin(name).namespace for name in names] == ["a", None, "b"]
    with pytest.raises(RequestError, match="'now' is there twice"):
        Functions([NOW, groups[0], NOW], "auto")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0"),
        ({"input": [{"type": "computer_call"}]}, "input.0"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input.0.role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input.0.content.0.image_url",
        ),
        (
            {"input": [{"type": "function_call", "call_id": "a", "name": "f", "arguments": "{"}]},
            "input.0.arguments",
        ),
        ({"tools": TOOLS, "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "no"}}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": [NOW, NOW]}, "tools"),
        ({"tools": [{"type": "namespace", "name": "a", "tools": [NOW, NOW]}]}, "tools"),
        ({"tools": [{"type": "namespace", "tools": [NOW]}]}, "tools"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"truncation": "sometimes"}, "truncation"),
    ],
)
async def test_refusals_name_the_field(tiny_folder: Path, fields: Any, param: str) -> None:
    async with answering(tiny_folder, "x", in_process=True) as served:
        response = await served.http.post("/v1/responses", json={"input": "Hi", **fields})
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == param
        assert served.core.requests == []


async def test_a_stream_that_fails_ends_with_a_failed_response(tiny_folder: Path) -> None:
    async with answering(tiny_folder, "", core=FakeCore([65])) as served:
        stream = await served.openai.responses.create(model=MODEL, input="Hi", stream=True)
        await anext(aiter(stream))
        served.core.die()
        events = [event async for event in stream]
        assert events[-1].type == "response.failed"
        assert "engine is dead" in str(events[-1].response.error)


@pytest.mark.parametrize(
    "part",
    [
        *(types.FunctionToolParam, types.NamespaceToolParam, types.ResponseTextConfigParam),
        *(types.EasyInputMessageParam, types.ResponseOutputMessageParam),
        *(types.ResponseInputTextParam, types.ResponseOutputTextParam),
        *(types.ResponseOutputRefusalParam, types.ResponseFunctionToolCallParam),
        *(types.response_input_param.FunctionCallOutput, types.ResponseReasoningItemParam),
        *(shared_params.Reasoning, types.ToolChoiceFunctionParam, types.ToolChoiceAllowedParam),
    ],
)
def test_every_field_of_the_official_parts_is_documented(part: Any) -> None:
    assert set(part.__annotations__) - documented_words("The Responses API") == set()


def test_every_official_field_is_honoured_refused_or_documented() -> None:
    for kind, body, title in (
        (response_create_params.ResponseCreateParamsBase, ResponsesBody, "The Responses API"),
        (completion_create_params.CompletionCreateParamsBase, ChatBody, "What is taken without"),
    ):
        known = body.model_fields.keys() | body.UNSUPPORTED.keys() | documented_words(title)
        assert set(kind.__annotations__) - known == set(), kind
