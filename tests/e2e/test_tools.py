"""Tool calls of the real default model through the openai client, with a template that shows them.

The model is too small to choose well, so what is checked is the form of its calls.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.default_model import default_model_folder
from tests.e2e.running_server import ENGINE, Server, free_port, started
from tests.places import DATA

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = "smollm2"
TEMPLATE = DATA / "hermes_tools.jinja"
UNITS = ["celsius", "fahrenheit"]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"$ref": "#/$defs/City"},
                "unit": {"enum": UNITS},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
            "$defs": {"City": {"type": "string", "maxLength": 20}},
        },
    },
}
NOW: Any = {"type": "function", "function": {"name": "now", "description": "The time"}}
ASK: Any = [{"role": "user", "content": "What is the weather in Paris, in celsius?"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    port = free_port()
    command = [*ENGINE, "serve", str(default_model_folder()), "--port", str(port)]
    command += ["--served-model-name", MODEL, "--kv-cache-memory-bytes", "128M"]
    command += ["--chat-template", str(TEMPLATE), "--max-model-len", "2048"]
    command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    with started(command, port) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        # With the prompt cached, every later answer is computed in the same way.
        made.chat.completions.create(**options(max_tokens=1))
        yield made


def options(**changes: Any) -> Any:
    asked = {"model": MODEL, "messages": ASK, "tools": [WEATHER, NOW], "max_tokens": 120}
    return {**asked, "temperature": 0, **changes}


def calls_of(client: openai.OpenAI, **changes: Any) -> tuple[list[tuple[str, str]], str]:
    """Names and arguments of an answer, which a stream must give again."""
    (choice,) = client.chat.completions.create(**options(**changes)).choices
    whole = [(c.function.name, c.function.arguments) for c in choice.message.tool_calls or []]
    content, names, arguments = "", dict[int, str](), defaultdict[int, str](str)
    reason = None
    for chunk in client.chat.completions.create(**options(**changes), stream=True):
        content += chunk.choices[0].delta.content or ""
        reason = chunk.choices[0].finish_reason
        for call in chunk.choices[0].delta.tool_calls or []:
            if call.function.name:
                names[call.index] = call.function.name
            arguments[call.index] += call.function.arguments or ""
    assert [(name, arguments[index]) for index, name in names.items()] == whole
    assert content == (choice.message.content or "")
    assert reason == choice.finish_reason
    return whole, choice.finish_reason


def check_weather(arguments: str) -> None:
    values = json.loads(arguments)
    assert values.keys() == {"city", "unit"}
    assert len(values["city"]) <= 20
    assert values["unit"] in UNITS


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_required_always_gives_calls_that_fit(client: openai.OpenAI, seed: int) -> None:
    calls, reason = calls_of(
        client, tool_choice="required", parallel_tool_calls=False, seed=seed, temperature=1
    )
    ((name, arguments),) = calls
    assert reason == "tool_calls"
    assert name in ("weather", "now")
    if name == "weather":
        check_weather(arguments)
    else:
        assert json.loads(arguments) == {}


def test_a_named_function_gets_its_arguments(client: openai.OpenAI) -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    ((name, arguments),), reason = calls_of(client, tool_choice=choice)
    assert (name, reason) == ("weather", "stop")
    check_weather(arguments)


def test_auto_streams_what_it_answers_whole(client: openai.OpenAI) -> None:
    calls, reason = calls_of(client)
    assert reason == ("tool_calls" if calls else "stop") or (reason == "length" and not calls)


def test_a_conversation_goes_on_behind_a_call(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(
        **options(tool_choice="required", parallel_tool_calls=False)
    )
    message = first.choices[0].message
    assert message.tool_calls
    result = {
        "role": "tool",
        "tool_call_id": message.tool_calls[0].id,
        "content": '{"sky": "clear"}',
    }
    messages = [*ASK, message.model_dump(), result]
    second = client.chat.completions.create(**options(messages=messages, tool_choice="none"))
    assert second.choices[0].message.tool_calls is None
    assert second.choices[0].message.content


def test_the_same_through_the_responses_api(client: openai.OpenAI) -> None:
    tools = [{"type": "function", "strict": True, **tool["function"]} for tool in (WEATHER, NOW)]
    asked: Any = {
        "model": MODEL,
        "input": ASK[0]["content"],
        "tools": tools,
        "tool_choice": {"type": "function", "name": "weather"},
        "temperature": 0,
        "max_output_tokens": 120,
    }
    (call,) = client.responses.create(**asked).output
    assert (call.type, call.name) == ("function_call", "weather")
    check_weather(call.arguments)
    with client.responses.stream(**asked) as stream:
        final = stream.until_done().get_final_response()
    assert [item.arguments for item in final.output if item.type == "function_call"] == [
        call.arguments
    ]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "clear"}
    asked |= {"input": [*ASK, call.model_dump(exclude_none=True), result], "tool_choice": "none"}
    answer = client.responses.create(**asked)
    assert answer.output_text


def test_the_same_through_the_messages_api(server: Server) -> None:
    tools = [
        {
            "name": tool["function"]["name"],
            "description": tool["function"]["description"],
            "input_schema": tool["function"].get("parameters", {"type": "object"}),
        }
        for tool in (WEATHER, NOW)
    ]
    asked: Any = {
        "model": MODEL,
        "messages": ASK,
        "tools": tools,
        "tool_choice": {"type": "tool", "name": "weather"},
        "max_tokens": 32_000,
        "extra_body": {"temperature": 0},
    }
    # With a time limit of its own, the client lets so large a max_tokens pass.
    with anthropic.Anthropic(
        base_url=server.url, api_key="none", max_retries=0, timeout=300
    ) as client:
        message = client.messages.create(**asked)
        (call,) = message.content
        assert (call.type, message.stop_reason) == ("tool_use", "tool_use")
        check_weather(json.dumps(call.input))
        with client.messages.stream(**asked) as stream:
            streamed = stream.get_final_message()
        assert [block.input for block in streamed.content if block.type == "tool_use"] == [
            call.input
        ]
        assert streamed.usage.cache_read_input_tokens
        turns = [
            *ASK,
            {"role": "assistant", "content": [call.model_dump(exclude_none=True)]},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "clear"}],
            },
        ]
        count = client.messages.count_tokens(model=MODEL, messages=turns, tools=asked["tools"])
        asked |= {"messages": turns, "tool_choice": {"type": "none"}, "max_tokens": 40}
        answer = client.messages.create(**asked)
    cached = answer.usage.cache_read_input_tokens or 0
    # Without a tool_choice of none, the prompt has the tools, too.
    assert count.input_tokens > answer.usage.input_tokens + cached
    assert answer.content[0].type == "text"
