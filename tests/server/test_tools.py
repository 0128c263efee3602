"""Tool calls through the real application and the real openai client; the core is scripted."""

from __future__ import annotations

import json
from collections import defaultdict
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from engine.args import EngineArgs
from engine.errors import ConfigError, RequestError
from engine.frontend.chat_template import ChatTemplate, load_chat_template
from engine.frontend.tokenizer import Tokenizer
from engine.model_config import ModelConfig
from engine.server.protocol import ChatBody, parse_body
from engine.server.tools import plan_tools
from tests.default_model import default_model_folder
from tests.places import DATA
from tests.server.fake_core import FakeCore
from tests.server.serving import MODEL, Served, serving
from tests.tiny_model import EOS

ASK: Any = [{"role": "user", "content": "Weather?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/City"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"City": {"type": "string"}},
}
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Weather of <a> city",
            "parameters": PARAMETERS,
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
NAMED: Any = {"type": "function", "function": {"name": "weather"}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris 🗼"}}\n</tool_call>'
TWO_CALLS = f'I look.\n{CALL}\n<tool_call>{{"name": "now", "arguments": {{}}}}</tool_call>'
ARGUMENTS = '{"city": "Paris 🗼"}'


def answering(
    folder: Path, text: str, parser: str | None = "hermes"
) -> AbstractAsyncContextManager[Served]:
    """A server whose model always writes `text`."""
    ids = Tokenizer.from_folder(folder).encode(text, add_special_tokens=False)
    return serving(folder, FakeCore([*ids, EOS]), in_process=True, tool_call_parser=parser)


async def ask(served: Served, **options: Any) -> openai.types.chat.ChatCompletion:
    body = {"model": MODEL, "messages": ASK, "tools": TOOLS, **options}
    response = await served.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return openai.types.chat.ChatCompletion.model_validate(response.json())


async def events(served: Served, **options: Any) -> list[Any]:
    body = {"model": MODEL, "messages": ASK, "tools": TOOLS, "stream": True, **options}
    response = await served.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return [json.loads(event.removeprefix("data: ")) for event in response.text.split("\n\n")[:-2]]


async def refusal(served: Served, **options: Any) -> dict[str, Any]:
    body = {"messages": ASK, "tools": TOOLS, **options}
    response = await served.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400, response.text
    assert served.core.requests == []
    error: dict[str, Any] = response.json()["error"]
    return error


def calls_of(answer: openai.types.chat.ChatCompletion) -> list[tuple[str, str]]:
    made = answer.choices[0].message.tool_calls or []
    assert len({call.id for call in made}) == len(made)
    assert all(call.id.startswith("chatcmpl-tool-") for call in made)
    return [(c.function.name, c.function.arguments) for c in made if c.type == "function"]


async def test_the_openai_client_reads_whole_and_streamed_calls(tiny_folder: Path) -> None:
    ids = Tokenizer.from_folder(tiny_folder).encode(TWO_CALLS, add_special_tokens=False)
    core = FakeCore([*ids, EOS])
    async with serving(tiny_folder, core, tool_call_parser="hermes") as served:
        create = served.openai.chat.completions.create
        whole = await create(model=MODEL, messages=ASK, tools=TOOLS, tool_choice="auto")
        assert whole.choices[0].message.content == "I look.\n"
        assert whole.choices[0].finish_reason == "tool_calls"
        assert calls_of(whole) == [("weather", ARGUMENTS), ("now", "{}")]
        assert whole.usage is not None
        assert whole.usage.completion_tokens == len(TWO_CALLS.encode()) + 1

        stream = await create(
            model=MODEL, messages=ASK, tools=TOOLS, stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        content, ids_seen = "", set()
        names: list[str] = []
        arguments: dict[int, str] = defaultdict(str)
        async for chunk in stream:
            for choice in chunk.choices:
                content += choice.delta.content or ""
                reason = choice.finish_reason
                for call in choice.delta.tool_calls or []:
                    assert call.function is not None
                    if call.function.name is not None:
                        assert call.index == len(names)
                        assert call.type == "function"
                        names.append(call.function.name)
                        ids_seen.add(call.id)
                    arguments[call.index] += call.function.arguments or ""
        assert (content, names, reason) == ("I look.\n", ["weather", "now"], "tool_calls")
        assert dict(arguments) == {0: ARGUMENTS, 1: "{}"}
        assert len(ids_seen) == 2
        assert chunk.usage is not None
        assert chunk.usage.completion_tokens == whole.usage.completion_tokens
        assert not any(request.sampling_params.skip_special_tokens for request in core.requests)


class Weather(BaseModel):
    city: str


async def test_the_openai_clients_own_accumulation(tiny_folder: Path) -> None:
    ids = Tokenizer.from_folder(tiny_folder).encode(CALL, add_special_tokens=False)
    core = FakeCore([*ids, EOS])
    async with serving(tiny_folder, core, tool_call_parser="hermes") as served:
        tools = [openai.pydantic_function_tool(Weather, name="weather")]
        stream = served.openai.chat.completions.stream(model=MODEL, messages=ASK, tools=tools)
        async with stream as stream_events:
            kinds = {event.type async for event in stream_events}
            (choice,) = (await stream_events.get_final_completion()).choices
        assert "tool_calls.function.arguments.done" in kinds
        assert choice.message.tool_calls
        assert choice.message.tool_calls[0].function.parsed_arguments == Weather(city="Paris 🗼")


async def test_the_chunks_of_a_stream(tiny_folder: Path) -> None:
    async with answering(tiny_folder, f"a {CALL}") as served:
        choices = [event["choices"][0] for event in await events(served)]
    deltas = [choice["delta"] for choice in choices]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert [delta["content"] for delta in deltas[1:-3]] == ["a", " "]
    (first,), (second,) = deltas[-3]["tool_calls"], deltas[-2]["tool_calls"]
    assert first.pop("id").startswith("chatcmpl-tool-")
    assert first == {
        "index": 0,
        "type": "function",
        "function": {"name": "weather", "arguments": ""},
    }
    assert second == {"index": 0, "function": {"arguments": ARGUMENTS}}
    assert deltas[-1] == {}
    assert [choice["finish_reason"] for choice in choices[-2:]] == [None, "tool_calls"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_malformed_call_is_content(tiny_folder: Path, stream: bool) -> None:
    text = '<tool_call>{"name": "weather", "arguments": {oops}</tool_call> <tool_'
    async with answering(tiny_folder, text) as served:
        if stream:
            choices = [event["choices"][0] for event in await events(served)]
            content = "".join(choice["delta"].get("content", "") for choice in choices)
            reason = choices[-1]["finish_reason"]
        else:
            answer = await ask(served)
            assert answer.choices[0].message.tool_calls is None
            content = answer.choices[0].message.content or ""
            reason = answer.choices[0].finish_reason
    assert (content, reason) == (text, "stop")


async def test_calls_without_content_and_as_json(tiny_folder: Path) -> None:
    text = '{"name": "weather", "parameters": {"city": "Rom"}}'
    for parser in ("json", "llama3_json"):
        async with answering(tiny_folder, text, parser) as served:
            answer = await ask(served)
            assert answer.choices[0].message.content is None
            assert calls_of(answer) == [("weather", '{"city": "Rom"}')]
            assert served.core.requests[0].sampling_params.skip_special_tokens


async def test_parallel_calls_may_be_switched_off(tiny_folder: Path) -> None:
    async with answering(tiny_folder, TWO_CALLS) as served:
        answer = await ask(served, parallel_tool_calls=False)
        assert calls_of(answer) == [("weather", ARGUMENTS)]
        chunks = await events(served, parallel_tool_calls=False)
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        indices = [d["tool_calls"][0]["index"] for d in deltas if "tool_calls" in d]
        assert indices == [0, 0]


async def test_the_length_limit_is_told_and_each_sample_has_its_own_parser(
    tiny_folder: Path,
) -> None:
    async with answering(tiny_folder, CALL) as served:
        cut = (await ask(served, max_tokens=20)).choices[0]
        assert (cut.message.content, cut.finish_reason) == (CALL[:20], "length")
        answer = await ask(served, n=3)
        assert [choice.finish_reason for choice in answer.choices] == ["tool_calls"] * 3
        chunks = await events(served, n=2)
        made = [chunk["choices"][0] for chunk in chunks if "tool_calls" in str(chunk)]
        for index in range(2):
            own = [c["delta"]["tool_calls"][0] for c in made if c["index"] == index and c["delta"]]
            assert "".join(call["function"]["arguments"] for call in own) == ARGUMENTS


async def test_logprobs_and_continuous_counts_come_with_calls(tiny_folder: Path) -> None:
    async with answering(tiny_folder, f"a {CALL}") as served:
        chunks = await events(
            served, logprobs=True, stream_options={"continuous_usage_stats": True}
        )
    entries = [
        entry
        for chunk in chunks
        for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert len(entries) == len(f"a {CALL}".encode()) + 1
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks if "usage" in chunk]
    assert counts == sorted(counts)
    assert counts[-1] == len(entries)


@pytest.mark.parametrize("parser", [None, "hermes"])
async def test_required_is_constrained_and_streams(tiny_folder: Path, parser: str | None) -> None:
    text = '[{"name": "weather", "parameters": ' + ARGUMENTS + "}]"
    async with answering(tiny_folder, text, parser) as served:
        answer = await ask(served, tool_choice="required")
        assert calls_of(answer) == [("weather", ARGUMENTS)]
        assert answer.choices[0].finish_reason == "tool_calls"
        chunks = await events(served, tool_choice="required", parallel_tool_calls=False)
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        pieces = [d["tool_calls"][0]["function"]["arguments"] for d in deltas if "tool_calls" in d]
        assert len(pieces) > len(ARGUMENTS)
        assert "".join(pieces) == ARGUMENTS
        whole, single = (request.sampling_params for request in served.core.requests)
        schema = schema_of(whole)
        assert schema["minItems"] == 1
        assert schema_of(single) == {**schema, "maxItems": 1}
        calls = [call["properties"] for call in schema["items"]["anyOf"]]
        assert [call["name"] for call in calls] == [{"const": "weather"}, {"const": "now"}]
        place = "#/items/anyOf/0/properties/parameters"
        assert calls[0]["parameters"]["properties"] == {"city": {"$ref": f"{place}/$defs/City"}}
        assert calls[1]["parameters"]["additionalProperties"] is False


async def test_a_named_function_is_constrained_to_its_arguments(tiny_folder: Path) -> None:
    async with answering(tiny_folder, ARGUMENTS, None) as served:
        answer = await ask(served, tool_choice=NAMED)
        assert calls_of(answer) == [("weather", ARGUMENTS)]
        assert answer.choices[0].message.content is None
        assert answer.choices[0].finish_reason == "stop"
        assert schema_of(served.core.requests[0].sampling_params) == PARAMETERS


def schema_of(params: Any) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(params.structured_outputs.json)
    return schema


@pytest.mark.parametrize("choice", ["required", NAMED])
async def test_the_grammar_takes_calls_and_nothing_else(tiny_folder: Path, choice: Any) -> None:
    """llguidance walks the schema that the engine gets, byte by byte."""
    from llguidance import LLMatcher, LLTokenizer

    from engine.core.grammar import grammar_of

    async with answering(tiny_folder, "x", None) as served:
        await ask(served, tool_choice=choice, max_tokens=1)
        spec = served.core.requests[0].sampling_params.structured_outputs
    assert spec is not None

    def accepts(text: str) -> bool:
        matcher = LLMatcher(LLTokenizer("byte"), grammar_of(spec))
        return bool(matcher.try_consume_tokens(list(text.encode())) == len(text.encode())) and (
            matcher.is_accepting()
        )

    for arguments, is_good in [('{"city": "Rom"}', True), ('{"city": 3}', False), ("{}", False)]:
        one = f'{{"name": "weather", "parameters": {arguments}}}'
        assert accepts(arguments if choice is NAMED else f"[{one}]") is is_good
        assert not accepts(f"[{one}" if choice is NAMED else one)
    if choice == "required":
        assert accepts('[{"name": "now", "parameters": {}},{"name": "now", "parameters": {}}]')
        assert not accepts('[{"name": "later", "parameters": {}}]')
        assert not accepts("[]")


@pytest.mark.parametrize(
    ("options", "param", "words"),
    [
        ({}, "tools", ["--enable-auto-tool-choice", "--tool-call-parser"]),
        ({"tool_choice": "auto"}, "tools", ["--enable-auto-tool-choice", "--tool-call-parser"]),
        ({"tool_choice": "any"}, "tool_choice", ["required", '"any"']),
        ({"tool_choice": {"type": "function"}}, "tool_choice", ["required"]),
        ({"tool_choice": 5}, "tool_choice", []),
        ({"tool_choice": {"type": "function", "function": {"name": "rain"}}}, "tool_choice",
         ["rain", "weather, now"]),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", ["`tools` must be set"]),
        ({"tools": None, "tool_choice": NAMED}, "tool_choice", ["`tools` must be set"]),
        ({"tools": [{"type": "search"}]}, "tools.0.type", ["function"]),
        ({"tools": [{"function": {"name": ""}}]}, "tools.0.function.name", []),
        ({"tools": [{"function": {"name": "f", "parameters": {"type": "no"}}}],
          "tool_choice": "required"}, "tools", ["grammar"]),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice",
         ["response_format"]),
        ({"tool_choice": "none", "messages": [*ASK, {"role": "assistant", "tool_calls": [
            {"function": {"name": "f", "arguments": "[1]"}}]}]},
         "messages.1.tool_calls.0.function.arguments", ["object"]),
        ({"tool_choice": "none", "messages": [*ASK, {"role": "assistant", "tool_calls": [
            {"function": {"name": "f", "arguments": "[" * 9000}}]}]},
         "messages.1.tool_calls.0.function.arguments", []),
    ],
)  # fmt: skip
async def test_refusals(
    tiny_folder: Path, options: dict[str, Any], param: str, words: list[str]
) -> None:
    async with answering(tiny_folder, "x", None) as served:
        error = await refusal(served, **options)
        assert error["param"] == param
        assert all(word in error["message"] for word in words), error["message"]


async def test_none_leaves_tools_out(tiny_folder: Path) -> None:
    async with answering(tiny_folder, CALL) as served:
        answer = await ask(served, tool_choice="none")
        assert answer.choices[0].message.content == CALL
        assert answer.choices[0].finish_reason == "stop"
    assert plan_tools([], "none", is_parallel=True, auto_parser=None).for_template is None


async def test_completions_take_no_tools(tiny_folder: Path) -> None:
    async with answering(tiny_folder, "x") as served:
        body = {"prompt": "a", "tools": TOOLS}
        response = await served.http.post("/v1/completions", json=body)
        assert response.json()["error"]["param"] == "tools"


def test_the_flags_need_each_other(tiny_folder: Path) -> None:
    from engine.env import detect_device

    model = ModelConfig.from_folder(tiny_folder, "tiny")
    with pytest.raises(ConfigError, match="requires --tool-call-parser"):
        EngineArgs(enable_auto_tool_choice=True, tool_call_parser="none").create_engine_config(
            model, detect_device()
        )


# ---- prompts ---------------------------------------------------------------------------------

CONVERSATION: Any = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Weather in Paris?"}]},
    {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "function_call": None,
        "tool_calls": [
            {
                "id": "chatcmpl-tool-1",
                "type": "function",
                "function": {"name": "weather", "arguments": ARGUMENTS},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "chatcmpl-tool-1", "content": '{"sky": "<clear>"}'},
    {"role": "assistant", "content": "Clear.", "tool_calls": []},
    {"role": "user", "content": "Thanks"},
]
HERMES_TEMPLATE = (DATA / "hermes_tools.jinja").read_text()


def rendered(template: ChatTemplate, tools: Any) -> str:
    raw = json.dumps({"messages": CONVERSATION, "tools": tools}).encode()
    body = parse_body(ChatBody, raw)
    plan = plan_tools(body.tools, None, is_parallel=True, auto_parser="hermes")
    messages = [message.for_template() for message in body.messages]
    return template.render(messages, add_generation_prompt=True, tools=plan.for_template)


def test_a_conversation_with_calls_through_a_hermes_template() -> None:
    prompt = rendered(ChatTemplate(HERMES_TEMPLATE, {}), TOOLS)
    assert f'<tool_call>{{"name": "weather", "arguments": {ARGUMENTS}}}</tool_call>' in prompt
    assert '<tool_response>{"sky": "<clear>"}</tool_response>' in prompt
    assert "assistant\nClear.<|im_end|>" in prompt
    assert "None" not in prompt
    shown = [json.loads(line) for line in prompt.splitlines() if line.startswith('{"type"')]
    assert shown == TOOLS
    assert "<tool_call>" in prompt.partition("<|im_end|>")[0]
    assert "Functions" not in rendered(ChatTemplate(HERMES_TEMPLATE, {}), [])


def test_a_template_of_its_own_for_tools(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    template = load_chat_template(tmp_path, {})
    assert template is not None
    assert (rendered(template, TOOLS), rendered(template, [])) == ("tools", "plain")


def test_a_template_that_refuses_tools_is_the_clients_error() -> None:
    source = "{% if tools %}{{ raise_exception('no tools') }}{% endif %}"
    with pytest.raises(RequestError, match="no tools"):
        rendered(ChatTemplate(source, {}), TOOLS)


@pytest.mark.slow
def test_the_default_models_template_equals_transformers() -> None:
    from transformers import AutoTokenizer

    folder = default_model_folder()
    theirs = AutoTokenizer.from_pretrained(str(folder))
    ours = load_chat_template(folder, Tokenizer.from_folder(folder).special_tokens)
    assert ours is not None
    for template, source in ((ours, None), (ChatTemplate(HERMES_TEMPLATE, {}), HERMES_TEMPLATE)):
        expected = theirs.apply_chat_template(
            [with_objects(message) for message in CONVERSATION],
            tools=TOOLS,
            chat_template=source,
            tokenize=False,
            add_generation_prompt=True,
        )
        assert rendered(template, TOOLS) == expected


def with_objects(message: dict[str, Any]) -> dict[str, Any]:
    """A message as transformers' templates expect it."""
    text = message["content"][0]["text"] if isinstance(message["content"], list) else None
    made: dict[str, Any] = {
        **{key: value for key, value in message.items() if value},
        "content": text or message["content"] or "",
    }
    for call in made.get("tool_calls", []):
        function = call["function"]
        arguments = json.loads(function["arguments"])
        made["tool_calls"] = [{**call, "function": {**function, "arguments": arguments}}]
    return made


async def test_tokenize_gives_the_prompt_that_a_chat_with_tools_would_have(
    tiny_folder: Path, tmp_path: Path
) -> None:
    for path in tiny_folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "chat_template.jinja").write_text("{{ mood }} {{ tools }} {{ messages }}")
    body = {"messages": ASK, "tools": TOOLS, "chat_template_kwargs": {"mood": "curious"}}
    async with serving(tmp_path, FakeCore([EOS]), tool_call_parser="hermes") as served:
        tokens = (await served.http.post("/tokenize", json=body)).json()["tokens"]
        await ask(served, **body)

        assert served.core.requests[0].prompt_token_ids == tokens
        prompt = served.llm.tokenizer.decode(tokens, skip_special_tokens=False)
        assert prompt.startswith("curious [{")
        assert "Weather of <a> city" in prompt
        response = await served.http.post("/tokenize", json={**body, "chat_template": "x"})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "chat_template"
