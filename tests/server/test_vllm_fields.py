"""Fields that vLLM's clients send beside OpenAI's: what each of them changes in the answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.frontend.tokenizer import Tokenizer
from engine.sampling_params import StructuredOutputsParams
from tests.server.conftest import ANSWER
from tests.server.fake_core import FakeCore
from tests.server.serving import Served, serving
from tests.tiny_model import EOS

ASK: Any = [{"role": "user", "content": "Hello"}]
BEGUN: Any = [*ASK, {"role": "assistant", "content": "I think "}]


async def chat(served: Served, **body: Any) -> dict[str, Any]:
    response = await served.http.post("/v1/chat/completions", json={"messages": ASK, **body})
    assert response.status_code == 200, response.text
    return dict(response.json())


async def complete(served: Served, **body: Any) -> dict[str, Any]:
    response = await served.http.post("/v1/completions", json={"prompt": "Hello", **body})
    assert response.status_code == 200, response.text
    return dict(response.json())


async def events(served: Served, path: str, **body: Any) -> list[dict[str, Any]]:
    response = await served.http.post(path, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def ids(served: Served, text: str) -> list[int]:
    return served.llm.tokenizer.encode(text, add_special_tokens=False)


def last_prompt(served: Served) -> str:
    prompt = served.core.requests[-1].prompt_token_ids
    return served.llm.tokenizer.decode(prompt, skip_special_tokens=False)


class TestContinueFinalMessage:
    async def test_the_prompt_ends_inside_the_last_message(self, served: Served) -> None:
        answer = await chat(served, messages=BEGUN, continue_final_message=True)
        assert last_prompt(served) == "<s>user: Hello</s><s>assistant: I think "
        assert answer["choices"][0]["message"] == {"role": "assistant", "content": ANSWER}

    async def test_echo_puts_the_begun_text_before_the_answer(self, served: Served) -> None:
        body = {"messages": BEGUN, "continue_final_message": True, "echo": True}
        answer = await chat(served, **body)
        assert answer["choices"][0]["message"]["content"] == "I think " + ANSWER
        assert answer["choices"][0]["logprobs"] is None
        streamed = await events(served, "/v1/chat/completions", **body)
        texts = [event["choices"][0]["delta"].get("content", "") for event in streamed]
        assert "".join(texts) == "I think " + ANSWER

    async def test_echo_of_a_new_message_adds_nothing(self, served: Served) -> None:
        answer = await chat(served, echo=True)
        assert answer["choices"][0]["message"]["content"] == ANSWER

    async def test_a_users_message_goes_on_in_the_users_role(self, served: Served) -> None:
        body = {"continue_final_message": True, "add_generation_prompt": False}
        answer = await chat(served, **body)
        assert last_prompt(served) == "<s>user: Hello"
        assert answer["choices"][0]["message"]["role"] == "user"
        streamed = await events(served, "/v1/chat/completions", messages=ASK, **body)
        assert streamed[0]["choices"][0]["delta"]["role"] == "user"

    @pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
    async def test_both_ends_at_once_are_refused(self, served: Served, path: str) -> None:
        body = {
            "messages": BEGUN,
            "continue_final_message": True,
            "add_generation_prompt": True,
        }
        response = await served.http.post(path, json=body)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "continue_final_message"

    @pytest.mark.parametrize("content", ["", "  ", None])
    async def test_a_last_message_without_text_is_refused(
        self, served: Served, content: str | None
    ) -> None:
        messages = [*ASK, {"role": "assistant", "content": content}]
        body = {"messages": messages, "continue_final_message": True}
        response = await served.http.post("/v1/chat/completions", json=body)
        assert response.status_code == 400
        assert "last message" in response.json()["error"]["message"]

    async def test_tokenize_cuts_the_same_way(self, served: Served) -> None:
        body = {"messages": BEGUN, "continue_final_message": True}
        tokens = (await served.http.post("/tokenize", json=body)).json()["tokens"]
        await chat(served, **body)
        assert served.core.requests[-1].prompt_token_ids == tokens


class TestTruncatePromptTokens:
    async def test_a_prompt_keeps_its_end(self, served: Served) -> None:
        answer = await complete(served, prompt="abcdef", truncate_prompt_tokens=3, max_tokens=2)
        assert served.core.requests[-1].prompt_token_ids == ids(served, "def")
        assert answer["usage"]["prompt_tokens"] == 3

    async def test_minus_one_leaves_room_for_the_answer(self, served: Served) -> None:
        await complete(served, prompt="x" * 600, truncate_prompt_tokens=-1, max_tokens=12)
        assert len(served.core.requests[-1].prompt_token_ids) == 500

    async def test_a_chat_and_a_short_prompt(self, served: Served) -> None:
        await chat(served, truncate_prompt_tokens=5)
        assert last_prompt(served) == "tant: "[-5:]
        await complete(served, truncate_prompt_tokens=400)
        assert last_prompt(served) == "Hello"

    async def test_an_embedding_keeps_the_beginning(self, served: Served) -> None:
        body = {"input": ["abcdef", "xy"], "truncate_prompt_tokens": 3}
        answer = (await served.http.post("/v1/embeddings", json=body)).json()
        assert answer["usage"]["prompt_tokens"] == 5
        assert [request.prompt_token_ids for request in served.core.requests] == [
            ids(served, "abc"),
            ids(served, "xy"),
        ]


class TestTokenIds:
    async def test_whole_answers(self, served: Served, answer_ids: list[int]) -> None:
        answer = await chat(served, return_token_ids=True)
        assert answer["choices"][0]["token_ids"] == answer_ids
        assert answer["prompt_token_ids"] == served.core.requests[-1].prompt_token_ids
        answer = await complete(served, return_token_ids=True, max_tokens=len(answer_ids))
        assert answer["choices"][0]["token_ids"] == answer_ids
        assert answer["choices"][0]["prompt_token_ids"] == ids(served, "Hello")
        assert "token_ids" not in (await chat(served))["choices"][0]

    async def test_streams(self, served: Served, answer_ids: list[int]) -> None:
        chunks = await events(served, "/v1/chat/completions", messages=ASK, return_token_ids=True)
        assert chunks[0]["prompt_token_ids"] == served.core.requests[-1].prompt_token_ids
        choices = [chunk["choices"][0] for chunk in chunks]
        assert [i for choice in choices for i in choice.get("token_ids", [])] == answer_ids
        chunks = await events(
            served, "/v1/completions", prompt="Hello", return_token_ids=True, max_tokens=9
        )
        choices = [chunk["choices"][0] for chunk in chunks]
        assert choices[0]["prompt_token_ids"] == ids(served, "Hello")
        assert [i for choice in choices for i in choice.get("token_ids", [])] == answer_ids[:9]

    async def test_tokens_of_logprobs_as_ids(self, served: Served, answer_ids: list[int]) -> None:
        body = {"return_tokens_as_token_ids": True, "max_tokens": 2}
        names = [f"token_id:{token}" for token in answer_ids[:2]]
        answer = await chat(served, logprobs=True, top_logprobs=1, **body)
        content = answer["choices"][0]["logprobs"]["content"]
        assert [entry["token"] for entry in content] == names
        assert content[0]["top_logprobs"][0]["token"].startswith("token_id:")
        answer = await complete(served, logprobs=1, **body)
        logprobs = answer["choices"][0]["logprobs"]
        assert logprobs["tokens"] == names
        assert set(logprobs["top_logprobs"][0]) > {names[0]}


async def test_what_changes_nothing_is_taken(served: Served) -> None:
    answer = await chat(
        served,
        prediction={"type": "content", "content": "Paris"},
        best_of=1,
        use_beam_search=False,
        modalities=["text"],
        functions=[],
        documents=[],
    )
    assert answer["choices"][0]["message"]["content"] == ANSWER
    await complete(served, n=2, best_of=2, temperature=1.0)


async def test_documents_reach_the_template(tiny_folder: Path, tmp_path: Path) -> None:
    for path in tiny_folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    template = "{% for document in documents or [] %}[{{ document.text }}]{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(template)
    async with serving(tmp_path, FakeCore([EOS]), in_process=True) as served:
        await chat(served, documents=[{"text": "one"}, {"text": "two"}])
        assert last_prompt(served) == "[one][two]"


async def test_the_same_grammar_under_two_names_is_one(served: Served) -> None:
    grammar = '?start: "yes" | "no"'
    await chat(served, structured_outputs={"grammar": grammar}, guided_grammar=grammar)
    params = served.core.requests[-1].sampling_params
    assert params.structured_outputs == StructuredOutputsParams(grammar=grammar)
    body = {"messages": ASK, "structured_outputs": {"regex": "a"}, "guided_regex": "b"}
    response = await served.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert "got 2" in response.json()["error"]["message"]


async def test_tokenizer_info_is_there_when_asked_for(tiny_folder: Path) -> None:
    info = {"tokenizer_class": "T", "chat_template": "x"}
    async with serving(
        tiny_folder, FakeCore([EOS]), in_process=True, tokenizer_info=info
    ) as served:
        assert (await served.http.get("/tokenizer_info")).json() == info
    async with serving(tiny_folder, FakeCore([EOS]), in_process=True) as served:
        assert (await served.http.get("/tokenizer_info")).status_code == 404


def test_a_template_may_strip_the_message_that_goes_on(tiny_folder: Path) -> None:
    from engine.frontend.chat_template import ChatTemplate

    tokenizer = Tokenizer.from_folder(tiny_folder)
    template = ChatTemplate(
        "{% for m in messages %}<{{ m.content | trim }}>{% endfor %}", tokenizer.special_tokens
    )
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b a "}]
    assert template.render(messages, continue_final_message=True) == "<a><b a"
