"""The Messages API through Anthropic's own client; the core is scripted."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic import types
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_create_params as beta_params

from engine.frontend.tokenizer import Tokenizer
from engine.server import pings
from engine.server.protocol_messages import CountTokensBody, MessagesBody
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
from tests.waiting import until

ASK: Any = [{"role": "user", "content": "Weather?"}]
TOOLS: Any = [
    {
        "name": "weather",
        "description": "Weather of a city",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
    {"name": "now", "input_schema": {"type": "object", "properties": {}}},
]
CHAT_TOOLS: Any = [
    {"type": "function", "function": {"name": tool["name"], "parameters": tool["input_schema"]}}
    for tool in TOOLS
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris 🗼"}}\n</tool_call>'
TWO_CALLS = f'I look.\n{CALL}\n<tool_call>{{"name": "now", "arguments": {{}}}}</tool_call>'
THOUGHT = "<think>\nTwo and two.\n</think>\n\n"


@contextlib.asynccontextmanager
async def answering(
    folder: Path, text: str, core: FakeCore | None = None, **options: Any
) -> AsyncGenerator[tuple[Served, anthropic.AsyncAnthropic], None]:
    """A server whose model always writes `text`, and a client of it."""
    ids = Tokenizer.from_folder(folder).encode(text, add_special_tokens=False)
    core = core or FakeCore([*ids, EOS])
    options = {"tool_call_parser": "hermes", **options}
    async with (
        serving(folder, core, **options) as served,
        anthropic.AsyncAnthropic(
            base_url=served.url, api_key="none", max_retries=0, timeout=120
        ) as client,
    ):
        yield served, client


async def whole_and_streamed(client: anthropic.AsyncAnthropic, **options: Any) -> Any:
    """The message, which is the same both ways."""
    body = {"model": MODEL, "max_tokens": 400, "messages": ASK, **options}
    whole = await client.messages.create(**body)
    async with client.messages.stream(**body) as stream:
        streamed = await stream.get_final_message()
    unlike: Any = {"id": True, "content": {"__all__": {"id", "signature", "parsed_output"}}}
    assert streamed.model_dump(exclude=unlike) == whole.model_dump(exclude=unlike)
    return whole


async def test_a_text_whole_and_streamed(tiny_folder: Path) -> None:
    async with answering(tiny_folder, "Paris. 🗼") as (served, client):
        message = await whole_and_streamed(
            client, system="Be brief.", extra_body={"temperature": 0.5}
        )
        assert [block.type for block in message.content] == ["text"]
        assert message.content[0].text == "Paris. 🗼"
        assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
        assert message.role == "assistant"
        assert message.model == MODEL
        assert prompt_of(served) == "<s>system: Be brief.</s><s>user: Weather?</s><s>assistant: "
        assert served.core.requests[-1].sampling_params.temperature == 0.5
        assert message.usage.input_tokens == len(served.core.requests[-1].prompt_token_ids)
        assert message.usage.output_tokens == len("Paris. 🗼".encode()) + 1


async def test_events_come_in_the_order_of_the_api(tiny_folder: Path) -> None:
    async with answering(tiny_folder, f"{THOUGHT}I look.{CALL}", reasoning_parser="qwen3") as (
        served,
        _,
    ):
        body = {"messages": ASK, "max_tokens": 400, "tools": TOOLS, "stream": True}
        text = (await served.http.post("/v1/messages", json=body)).text
    kinds, events = named_events(text)
    assert kinds == [event["type"] for event in events]
    assert "DONE" not in text
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    begun = [event["content_block"]["type"] for event in events if "content_block" in event]
    assert begun == ["thinking", "text", "tool_use"]
    deltas = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
    order = [kind for kind, before in zip(deltas, [None, *deltas], strict=False) if kind != before]
    assert order == ["thinking_delta", "signature_delta", "text_delta", "input_json_delta"]


async def test_calls_come_as_tool_use(tiny_folder: Path) -> None:
    async with answering(tiny_folder, TWO_CALLS) as (_, client):
        message = await whole_and_streamed(client, tools=TOOLS)
        text, weather, now = message.content
        assert text.text == "I look.\n"
        assert (weather.type, weather.name, weather.input) == (
            "tool_use",
            "weather",
            {"city": "Paris 🗼"},
        )
        assert weather.id.startswith("toolu_")
        assert (now.name, now.input) == ("now", {})
        assert message.stop_reason == "tool_use"
        one = await whole_and_streamed(
            client, tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True}
        )
        assert [block.type for block in one.content] == ["text", "tool_use"]


async def test_text_stands_where_it_was_written(tiny_folder: Path) -> None:
    async with answering(tiny_folder, f"One.{CALL} Two.\n{CALL}\nThree.") as (served, client):
        message = await whole_and_streamed(client, tools=TOOLS)
        kinds = [block.type for block in message.content]
        assert kinds == ["text", "tool_use", "text", "tool_use", "text"]
        texts = [block.text for block in message.content if block.type == "text"]
        assert texts == ["One.", " Two.\n", "\nThree."]
        chat = await served.openai.chat.completions.create(
            model=MODEL, messages=ASK, tools=CHAT_TOOLS, max_tokens=400
        )
        assert chat.choices[0].message.content == "One. Two.\n\nThree."


@pytest.mark.parametrize(
    ("choice", "answer"),
    [
        ({"type": "any"}, '[{"name": "weather", "parameters": {"city": "Rome"}}]'),
        ({"type": "tool", "name": "weather"}, '{"city": "Rome"}'),
    ],
)
async def test_a_required_call(tiny_folder: Path, choice: Any, answer: str) -> None:
    async with answering(tiny_folder, answer, tool_call_parser=None) as (served, client):
        message = await whole_and_streamed(client, tools=TOOLS, tool_choice=choice)
        assert [block.input for block in message.content] == [{"city": "Rome"}]
        assert message.stop_reason == "tool_use"
        assert served.core.requests[-1].sampling_params.structured_outputs is not None


async def test_a_call_that_was_cut_off_is_none(tiny_folder: Path) -> None:
    async with answering(tiny_folder, '{"city": "Rome"}', tool_call_parser=None) as (_, client):
        choice: Any = {"type": "tool", "name": "weather"}
        message = await client.messages.create(
            model=MODEL, max_tokens=8, messages=ASK, tools=TOOLS, tool_choice=choice
        )
        assert [block.type for block in message.content] == ["text"]
        assert message.stop_reason == "max_tokens"
    async with answering(tiny_folder, '{"city": "Ro', tool_call_parser=None) as (_, client):
        message = await client.messages.create(
            model=MODEL, max_tokens=400, messages=ASK, tools=TOOLS, tool_choice=choice
        )
        assert [block.type for block in message.content] == ["text"]
        assert message.stop_reason == "end_turn"


async def test_thoughts_come_as_blocks(tiny_folder: Path) -> None:
    async with answering(tiny_folder, f"{THOUGHT}Four.", reasoning_parser="qwen3") as (
        served,
        client,
    ):
        message = await whole_and_streamed(client, thinking={"type": "adaptive"})
        thought, text = message.content
        assert (thought.thinking, text.text) == ("Two and two.", "Four.")
        assert thought.signature
        assert message.usage.output_tokens_details.thinking_tokens > 0
        hidden = await whole_and_streamed(
            client, thinking={"type": "adaptive", "display": "omitted"}
        )
        assert [block.type for block in hidden.content] == ["text"]
        again = [
            *ASK,
            {"role": "assistant", "content": [block.model_dump() for block in message.content]},
            {"role": "user", "content": "Sure?"},
        ]
        await whole_and_streamed(client, messages=again)
        assert prompt_of(served).endswith("<s>assistant: Four.</s><s>user: Sure?</s><s>assistant: ")


async def test_a_budget_binds_a_model_that_thinks_and_no_other(tiny_folder: Path) -> None:
    thinking: Any = {"type": "enabled", "budget_tokens": 2}
    async with answering(tiny_folder, "<think>On and on") as (_, client):
        message = await whole_and_streamed(client, thinking=thinking)
        assert message.content[0].text == "<think>On and on"
    async with answering(tiny_folder, "<think>On and on", reasoning_parser="qwen3") as (
        served,
        client,
    ):
        await whole_and_streamed(client, thinking=thinking)
        limits = [request.sampling_params.max_tokens for request in served.core.requests]
        assert limits[0] == len("<think>") + 2


async def test_an_effort_and_a_switch_reach_the_template(tiny_folder: Path) -> None:
    def args(**options: Any) -> dict[str, Any]:
        body = MessagesBody.model_validate({"messages": ASK, "max_tokens": 9, **options})
        return body.chat(can_think=True).template_args

    assert "enable_thinking" not in args(thinking={"type": "adaptive"})
    assert args(thinking={"type": "disabled"})["enable_thinking"] is False
    assert args(thinking={"type": "enabled", "budget_tokens": 9})["enable_thinking"] is True
    assert args(output_config={"effort": "high"})["reasoning_effort"] == "high"


async def test_a_limit_above_the_context_is_cut_and_said(tiny_folder: Path) -> None:
    async with answering(tiny_folder, "On and on. ", core=FakeCore([65])) as (served, client):
        message = await whole_and_streamed(client, max_tokens=32_000)
        room = READY.max_model_len - message.usage.input_tokens
        assert message.usage.output_tokens == room
        assert message.stop_reason == "model_context_window_exceeded"
        assert message.usage.model_extra == {"max_tokens": room}
        short = await whole_and_streamed(client, max_tokens=5)
        assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 5)
        assert not short.usage.model_extra
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            await client.messages.create(
                model=MODEL, max_tokens=9, messages=[{"role": "user", "content": "long " * 200}]
            )
        assert len(served.core.requests) == 4


async def test_stop_sequences_end_an_answer(tiny_folder: Path) -> None:
    async with answering(tiny_folder, "One, two") as (_, client):
        message = await whole_and_streamed(client, stop_sequences=[","])
        assert message.content[0].text == "One"
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", ",")


async def test_an_answer_that_was_begun_goes_on(tiny_folder: Path) -> None:
    begun = [*ASK, {"role": "assistant", "content": "It is"}]
    async with answering(tiny_folder, " fine") as (served, client):
        message = await whole_and_streamed(client, messages=begun)
        assert message.content[0].text == " fine"
        assert prompt_of(served).endswith("<s>assistant: It is")


async def test_what_was_cached_is_counted_apart(tiny_folder: Path) -> None:
    ids = Tokenizer.from_folder(tiny_folder).encode("Hi", add_special_tokens=False)
    core = FakeCore([*ids, EOS], num_cached_tokens=16)
    async with answering(tiny_folder, "", core=core) as (served, client):
        usage = (await whole_and_streamed(client)).usage
        total = len(served.core.requests[-1].prompt_token_ids)
        assert (usage.input_tokens, usage.cache_read_input_tokens) == (total - 16, 16)
        assert usage.cache_creation_input_tokens == 0


async def test_count_tokens_counts_what_a_request_has(tiny_folder: Path) -> None:
    async with answering(tiny_folder, "Hi") as (served, client):
        options: Any = {"system": [{"type": "text", "text": "Be brief."}], "messages": ASK}
        message = await client.messages.create(model=MODEL, max_tokens=5, **options)
        count = await client.messages.count_tokens(model=MODEL, **options)
        assert count.input_tokens == message.usage.input_tokens
        long: Any = [{"role": "user", "content": "long " * 500}]
        count = await client.messages.count_tokens(model=MODEL, messages=long, tools=TOOLS)
        assert count.input_tokens > READY.max_model_len
        assert len(served.core.requests) == 1


async def test_what_an_agent_sends_first(
    tiny_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The fields of a coding agent's first request, with content of our own."""
    body = {
        "model": MODEL,
        "max_tokens": 32_000,
        "stream": True,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: v=1; a=b;"},
            {"type": "text", "text": "Be an agent.", "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Context."},
                    {"type": "text", "text": "List.", "cache_control": {"type": "ephemeral"}},
                ],
            },
            {"role": "system", "content": "Agents: none."},
        ],
        "tools": [*TOOLS, {"type": "web_search_20250305", "name": "web_search", "max_uses": 2}],
        "metadata": {"user_id": "somebody"},
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
    }
    async with answering(tiny_folder, CALL, api_key="s3cret") as (served, _):
        assert (await served.http.head("/")).status_code == 200
        answer = await served.http.post(
            "/v1/messages?beta=true", json=body, headers={"x-api-key": "s3cret"}
        )
        assert answer.status_code == 200, answer.text
        assert "web_search_20250305" in caplog.text
        assert '"name":"weather"' in answer.text
        assert prompt_of(served) == (
            "<s>system: Be an agent.</s><s>user: Context.\n\nList.\n\nAgents: none.</s>"
            "<s>assistant: "
        )
        wrong = await served.http.post("/v1/messages", json=body, headers={"x-api-key": "no"})
        assert wrong.status_code == 401
        assert wrong.json()["error"]["type"] == "authentication_error"


def test_calls_and_results_of_earlier_turns() -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "a/b", "data": ""}}
    body = MessagesBody.model_validate(
        {
            "max_tokens": 9,
            "messages": [
                *ASK,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                        {"type": "redacted_thinking", "data": "?"},
                        {"type": "text", "text": "I look."},
                        {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "R"}},
                        {"type": "tool_use", "id": "b", "name": "now", "input": {}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "a", "content": "Sun"},
                        {
                            "type": "tool_result",
                            "tool_use_id": "b",
                            "is_error": True,
                            "content": [{"type": "text", "text": "broken"}, picture],
                        },
                        {"type": "text", "text": "Go on."},
                        {
                            "type": "document",
                            "title": "Notes",
                            "source": {"type": "text", "media_type": "text/plain", "data": "One."},
                        },
                    ],
                },
            ],
        }
    )
    messages = [message.for_template() for message in body.chat(can_think=False).messages]
    assert [message["role"] for message in messages] == [
        *("user", "assistant", "tool", "tool", "user")
    ]
    said, sun, broken, last = messages[1:]
    assert (said["content"], said["reasoning_content"]) == ("I look.", "Hm.")
    calls = [(call["id"], call["function"]["arguments"]) for call in said["tool_calls"]]
    assert calls == [("a", {"city": "R"}), ("b", {})]
    assert (sun["tool_call_id"], sun["name"], sun["content"]) == ("a", "weather", "Sun")
    assert broken["content"].startswith("broken\n[image left out")
    assert last["content"] == "Go on.\n\nNotes\nOne."


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"mcp_servers": [{"type": "url", "url": "http://x", "name": "x"}]}, "mcp_servers"),
        ({"container": "abc"}, "container"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "messages.0.content.0.source",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]}, "text"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
        ({"temperature": 7}, "temperature"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": 3}}}}, "format"),
    ],
)
async def test_refusals_name_the_field(tiny_folder: Path, fields: Any, named: str) -> None:
    async with answering(tiny_folder, "x", in_process=True) as (served, _):
        body = {"messages": ASK, "max_tokens": 9, **fields}
        response = await served.http.post("/v1/messages", json=body)
        assert response.status_code == 400
        document = response.json()
        assert (document["type"], document["error"]["type"]) == ("error", "invalid_request_error")
        assert named in document["error"]["message"]
        assert served.core.requests == []


async def test_a_stream_that_fails_ends_with_an_error_event(tiny_folder: Path) -> None:
    async with answering(tiny_folder, "", core=FakeCore([65])) as (served, client):
        stream = await client.messages.create(
            model=MODEL, max_tokens=400, messages=ASK, stream=True
        )
        await anext(aiter(stream))
        served.core.die()
        with pytest.raises(anthropic.APIStatusError, match="engine is dead"):
            async for _ in stream:
                pass


@pytest.mark.parametrize(
    "part",
    [
        *(types.TextBlockParam, types.ThinkingBlockParam, types.ToolUseBlockParam),
        *(types.ToolResultBlockParam, types.DocumentBlockParam, types.SearchResultBlockParam),
        *(types.ToolParam, types.ToolChoiceToolParam, types.ToolChoiceAnyParam),
        *(types.ThinkingConfigEnabledParam, types.ThinkingConfigAdaptiveParam),
        *(types.OutputConfigParam, types.JSONOutputFormatParam, types.MetadataParam),
    ],
)
def test_every_field_of_the_official_parts_is_documented(part: Any) -> None:
    assert set(part.__annotations__) - documented_words("The Messages API") == set()


def test_every_official_field_is_honoured_refused_or_documented() -> None:
    documented = documented_words("The Messages API")
    for kind, body in (
        (message_create_params.MessageCreateParamsBase, MessagesBody),
        (beta_params.MessageCreateParamsBase, MessagesBody),
        (message_count_tokens_params.MessageCountTokensParams, CountTokensBody),
    ):
        names = set(kind.__annotations__)
        known = body.model_fields.keys() | body.UNSUPPORTED.keys() | documented
        assert names - known == set(), kind


async def test_pings_come_while_the_first_token_is_waited_for(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pings, "PING_EVERY_S", 0.001)
    core = FakeCore([65, EOS], is_paused=True)
    async with answering(tiny_folder, "", core) as (served, client):
        body: Any = {"model": MODEL, "max_tokens": 4, "messages": ASK}
        request = {**body, "stream": True}
        async with served.http.stream("POST", "/v1/messages", json=request) as response:
            assert response.status_code == 200
            parts = response.aiter_text()
            text = await anext(parts)
            assert text.startswith('event: ping\ndata: {"type":"ping"}\n\n')
            core.resume()
            text += "".join([part async for part in parts])
        kinds, _ = named_events(text)
        assert next(kind for kind in kinds if kind != "ping") == "message_start"
        assert kinds[kinds.index("message_start") :].count("ping") == 0
        core.is_paused = True
        async with client.messages.stream(**body) as stream:
            await until(lambda: core.num_running == 1)
            core.resume()
            message = await stream.get_final_message()
        assert [block.type for block in message.content] == ["text"]


async def test_a_request_that_fails_behind_a_ping_ends_with_an_error_event(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pings, "PING_EVERY_S", 0.001)
    core = FakeCore([65, EOS], is_paused=True)
    async with answering(tiny_folder, "", core) as (served, _):
        request = {"max_tokens": 4, "messages": ASK, "stream": True}
        async with served.http.stream("POST", "/v1/messages", json=request) as response:
            parts = response.aiter_text()
            text = await anext(parts)
            assert served.llm.cancel(core.requests[-1].request_id)
            text += "".join([part async for part in parts])
        kinds, events = named_events(text)
        assert (kinds[0], kinds[-1]) == ("ping", "error")
        assert "cancelled" in events[-1]["error"]["message"]
