"""Thoughts over HTTP: told apart, limited, and followed by what a grammar allows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from engine.frontend.tokenizer import Tokenizer
from engine.messages import EngineCoreOutput
from engine.server.protocol import ReasoningEffort
from tests.server.fake_core import FakeCore, _Running
from tests.server.serving import MODEL, Served, serving
from tests.tiny_model import EOS

ASK = [{"role": "user", "content": "2+2?"}]
THOUGHT = "<think>\nTwo and two.\n</think>\n\n"
WEATHER = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "now"}}]


class TwoPartCore(FakeCore):
    """Goes on with `rest` when it is asked behind a thought."""

    rest: tuple[int, ...] = ()

    def _add_token(self, running: _Running, output: EngineCoreOutput) -> None:
        thought, is_second = self.answer, running.request.request_id.endswith("-answer")
        self.answer = self.rest if is_second else thought
        super()._add_token(running, output)
        self.answer = thought


def core_that_says(folder: Path, thought: str, rest: str = "") -> TwoPartCore:
    tokenizer = Tokenizer.from_folder(folder)
    core = TwoPartCore([*tokenizer.encode(thought, add_special_tokens=False), EOS])
    core.rest = (*tokenizer.encode(rest, add_special_tokens=False), EOS)
    return core


HARMONY_THOUGHT = "<|channel|>analysis<|message|>Two and two.<|end|>"
HARMONY_ANSWER = "<|start|>assistant<|channel|>final<|message|>Four."
HARMONY_CALL = "<|start|>assistant<|channel|>commentary to=functions.now json<|message|>{}"


def text_of(served: Served, token_ids: list[int]) -> str:
    return served.llm.tokenizer.decode(token_ids, skip_special_tokens=False)


async def ask(served: Served, **options: Any) -> dict[str, Any]:
    body = {"model": MODEL, "messages": ASK, "max_tokens": 200, **options}
    response = await served.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def streamed(served: Served, **options: Any) -> tuple[str, str, list[Any], str]:
    """Reasoning, content, tool calls and finish reason of a stream."""
    body = {"model": MODEL, "messages": ASK, "max_tokens": 200, "stream": True, **options}
    response = await served.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    reasoning, content, reason = "", "", ""
    calls: list[Any] = []
    for event in response.text.split("\n\n")[:-2]:
        for choice in json.loads(event.removeprefix("data: "))["choices"]:
            delta = choice["delta"]
            assert delta.get("reasoning") == delta.get("reasoning_content")
            reasoning += delta.get("reasoning") or ""
            content += delta.get("content") or ""
            calls += delta.get("tool_calls") or []
            reason = choice["finish_reason"] or reason
    return reasoning, content, calls, reason


async def test_thought_and_answer_are_apart(tiny_folder: Path) -> None:
    core = core_that_says(tiny_folder, f"{THOUGHT}Four.")
    async with serving(tiny_folder, core, reasoning_parser="qwen3", in_process=True) as served:
        answer = await ask(served)
        message = answer["choices"][0]["message"]
        assert (message["reasoning"], message["content"]) == ("Two and two.", "Four.")
        assert message["reasoning_content"] == message["reasoning"]
        tokens = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
        assert len("Two and two.</think>") <= tokens <= len(THOUGHT)
        assert answer["usage"]["completion_tokens"] == len(THOUGHT) + len("Four.") + 1
        assert await streamed(served) == ("Two and two.", "Four.", [], "stop")
        hidden = (await ask(served, include_reasoning=False))["choices"][0]["message"]
        assert hidden == {"role": "assistant", "content": "Four."}


async def test_an_answer_that_is_all_thought(tiny_folder: Path) -> None:
    core = core_that_says(tiny_folder, "<think>On and on")
    async with serving(tiny_folder, core, reasoning_parser="qwen3", in_process=True) as served:
        message = (await ask(served))["choices"][0]["message"]
        assert (message["reasoning"], message["content"]) == ("On and on", None)


async def test_without_a_parser_the_text_stays_whole(tiny_folder: Path) -> None:
    async with serving(
        tiny_folder, core_that_says(tiny_folder, THOUGHT), in_process=True
    ) as served:
        answer = await ask(served)
        assert answer["choices"][0]["message"]["content"] == THOUGHT
        assert "completion_tokens_details" not in answer["usage"]
        body = {"messages": ASK, "thinking_token_budget": 3}
        refused = await served.http.post("/v1/chat/completions", json=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "thinking_token_budget"


async def test_tool_calls_follow_a_thought(tiny_folder: Path) -> None:
    core = core_that_says(tiny_folder, f"{THOUGHT}{WEATHER}")
    async with serving(
        tiny_folder, core, reasoning_parser="qwen3", tool_call_parser="hermes", in_process=True
    ) as served:
        choice = (await ask(served, tools=TOOLS))["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["reasoning"] == "Two and two."
        assert choice["message"]["tool_calls"][0]["function"]["name"] == "now"
        reasoning, content, calls, reason = await streamed(served, tools=TOOLS)
        assert (reasoning, content, reason) == ("Two and two.", "", "tool_calls")
        assert calls[0]["function"]["name"] == "now"


@pytest.mark.parametrize("budget", [0, 4, 16])
async def test_a_thought_ends_at_its_limit(tiny_folder: Path, budget: int) -> None:
    core = core_that_says(tiny_folder, "<think>" + "hm " * 50, "So: four.")
    async with serving(tiny_folder, core, reasoning_parser="qwen3", in_process=True) as served:
        answer = await ask(served, thinking_token_budget=budget)
        choice = answer["choices"][0]
        assert choice["message"]["content"] == "So: four."
        assert choice["finish_reason"] == "stop"
        thought = "<think>" + ("hm " * 50)[:budget]
        assert choice["message"].get("reasoning", "") == thought[7:].strip()
        assert answer["usage"]["completion_tokens"] == len(thought) + len("So: four.") + 1
        first, second = core.requests
        added = second.prompt_token_ids[len(first.prompt_token_ids) :]
        assert text_of(served, added) == f"{thought}\n</think>\n\n"
        reasoning, content, _, _ = await streamed(served, thinking_token_budget=budget)
        assert (reasoning, content) == (thought[7:].strip(), "So: four.")


async def test_a_short_thought_is_not_cut(tiny_folder: Path) -> None:
    core = core_that_says(tiny_folder, THOUGHT, "Four.")
    async with serving(tiny_folder, core, reasoning_parser="qwen3", in_process=True) as served:
        message = (await ask(served, thinking_token_budget=100))["choices"][0]["message"]
        assert (message["reasoning"], message["content"]) == ("Two and two.", "Four.")


async def test_a_grammar_begins_behind_the_thought(tiny_folder: Path) -> None:
    core = core_that_says(tiny_folder, THOUGHT, '{"sum": 4}')
    form = {"response_format": {"type": "json_object"}}
    async with serving(tiny_folder, core, reasoning_parser="qwen3", in_process=True) as served:
        message = (await ask(served, **form))["choices"][0]["message"]
        assert (message["reasoning"], message["content"]) == ("Two and two.", '{"sum": 4}')
        first, second = core.requests
        assert first.sampling_params.structured_outputs is None
        assert second.sampling_params.structured_outputs is not None
        assert await streamed(served, **form) == ("Two and two.", '{"sum": 4}', [], "stop")


async def test_a_model_that_answers_at_once_gets_its_grammar_from_the_start(
    tiny_folder: Path,
) -> None:
    core = core_that_says(tiny_folder, "Four, I think", '{"sum": 4}')
    async with serving(tiny_folder, core, reasoning_parser="qwen3", in_process=True) as served:
        form = {"response_format": {"type": "json_object"}}
        message = (await ask(served, **form))["choices"][0]["message"]
        assert message == {"role": "assistant", "content": '{"sum": 4}'}
        first, second = core.requests
        assert second.prompt_token_ids == first.prompt_token_ids


@pytest.mark.parametrize("effort", get_args(ReasoningEffort))
async def test_an_effort_reaches_the_template(
    tiny_folder: Path, tmp_path: Path, effort: str
) -> None:
    for path in tiny_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    template = "{{ reasoning_effort }} {{ enable_thinking }}"
    (tmp_path / "chat_template.jinja").write_text(template)
    core = FakeCore([EOS])
    async with serving(tmp_path, core, in_process=True) as served:
        await ask(served, reasoning_effort=effort)
        await ask(served, reasoning_effort=effort, chat_template_kwargs={"enable_thinking": 7})
        shown = [text_of(served, request.prompt_token_ids) for request in core.requests]
    assert shown == [f"{effort} {effort != 'none'}", f"{effort} 7"]


async def test_channels_are_apart(tiny_folder: Path) -> None:
    core = core_that_says(tiny_folder, HARMONY_THOUGHT + HARMONY_ANSWER)
    async with serving(
        tiny_folder, core, reasoning_parser="openai_gptoss", in_process=True
    ) as served:
        message = (await ask(served))["choices"][0]["message"]
        assert (message["reasoning"], message["content"]) == ("Two and two.", "Four.")
        assert await streamed(served) == ("Two and two.", "Four.", [], "stop")


async def test_a_call_follows_the_channel_of_thoughts(tiny_folder: Path) -> None:
    preamble = "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
    core = core_that_says(tiny_folder, HARMONY_THOUGHT + preamble + HARMONY_CALL)
    async with serving(
        tiny_folder,
        core,
        reasoning_parser="openai_gptoss",
        tool_call_parser="openai",
        in_process=True,
    ) as served:
        choice = (await ask(served, tools=TOOLS))["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        message = choice["message"]
        assert (message["reasoning"], message["content"]) == ("Two and two.", "I look.")
        assert message["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}
        reasoning, content, calls, reason = await streamed(served, tools=TOOLS)
        assert (reasoning, content, reason) == ("Two and two.", "I look.", "tool_calls")
        assert [call["function"].get("name") for call in calls] == ["now", None]
        # Nobody asked for tools: what the model says to one is text, without a mark.
        message = (await ask(served))["choices"][0]["message"]
        assert message["content"] == "I look.{}"


@pytest.mark.parametrize("budget", [0, 4, 16])
async def test_a_channel_of_thoughts_ends_at_its_limit(tiny_folder: Path, budget: int) -> None:
    opening, endless = "<|channel|>analysis<|message|>", "hm " * 50
    core = core_that_says(tiny_folder, opening + endless, "So: four.")
    async with serving(
        tiny_folder, core, reasoning_parser="openai_gptoss", in_process=True
    ) as served:
        answer = await ask(served, thinking_token_budget=budget)
        message = answer["choices"][0]["message"]
        assert message["content"] == "So: four."
        assert message.get("reasoning", "") == endless[:budget]
        first, second = core.requests
        added = text_of(served, second.prompt_token_ids[len(first.prompt_token_ids) :])
        head = "<|start|>assistant<|channel|>final<|message|>"
        assert added == f"{opening}{endless[:budget]}<|end|>{head}"


@pytest.mark.parametrize("thought", [HARMONY_THOUGHT, "<|channel|>final<|message|>Four, I think"])
async def test_a_grammar_begins_behind_the_head_of_an_answer(
    tiny_folder: Path, thought: str
) -> None:
    core = core_that_says(tiny_folder, thought, '{"sum": 4}')
    form = {"response_format": {"type": "json_object"}}
    async with serving(
        tiny_folder, core, reasoning_parser="openai_gptoss", in_process=True
    ) as served:
        message = (await ask(served, **form))["choices"][0]["message"]
        assert message["content"] == '{"sum": 4}'
        first, second = core.requests
        added = text_of(served, second.prompt_token_ids[len(first.prompt_token_ids) :])
        head = "<|channel|>final<|message|>"
        has_thought = thought is HARMONY_THOUGHT
        assert added == (f"{thought}<|start|>assistant{head}" if has_thought else head)
        assert message.get("reasoning") == ("Two and two." if has_thought else None)


async def test_a_required_call_of_a_model_with_channels(tiny_folder: Path) -> None:
    core = core_that_says(tiny_folder, HARMONY_THOUGHT, '[{"name": "now", "parameters": {}}]')
    async with serving(
        tiny_folder,
        core,
        reasoning_parser="openai_gptoss",
        tool_call_parser="openai",
        in_process=True,
    ) as served:
        message = (await ask(served, tools=TOOLS, tool_choice="required"))["choices"][0]["message"]
        assert message["reasoning"] == "Two and two."
        assert message["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}


async def test_a_call_in_an_open_thought_is_gone_on_with(tiny_folder: Path) -> None:
    begun = "<think>Hm.<tool_call>"
    core = core_that_says(tiny_folder, f"{begun} and more", WEATHER.removeprefix("<tool_call>"))
    async with serving(
        tiny_folder, core, reasoning_parser="qwen3", tool_call_parser="hermes", in_process=True
    ) as served:
        answer = await ask(served, tools=TOOLS, thinking_token_budget=100)
        message = answer["choices"][0]["message"]
        assert (message["reasoning"], message["content"]) == ("Hm.", None)
        assert message["tool_calls"][0]["function"]["name"] == "now"
        first, second = core.requests
        assert text_of(served, second.prompt_token_ids[len(first.prompt_token_ids) :]) == begun
