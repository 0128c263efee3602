from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import ANSWER
from tests.server.fake_core import FakeCore
from tests.server.serving import MODEL, Served, serving


@pytest.fixture
async def served(tiny_folder: Path, answer_ids: list[int]) -> AsyncGenerator[Served, None]:
    async with serving(tiny_folder, FakeCore(answer_ids, num_cached_tokens=4)) as served:
        yield served


async def test_default_length_and_usage(served: Served) -> None:
    answer = await served.openai.completions.create(model=MODEL, prompt="Hello")
    assert answer.choices[0].text == ANSWER[:16]
    assert answer.choices[0].finish_reason == "length"
    assert answer.object == "text_completion"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 5
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 4


@pytest.mark.parametrize("prompt", ["ab", ["ab", "c"], [1, 2, 3], [[1], [2, 3]]])
async def test_forms_of_a_prompt(served: Served, prompt: Any) -> None:
    def as_ids(entry: str | list[int]) -> list[int]:
        if isinstance(entry, str):
            return served.llm.tokenizer.encode(entry, add_special_tokens=True)
        return entry

    is_one = isinstance(prompt, str) or isinstance(prompt[0], int)
    expected = [as_ids(entry) for entry in ([prompt] if is_one else prompt)]
    response = await served.http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 3})
    choices = response.json()["choices"]
    assert [choice["text"] for choice in choices] == [ANSWER[:3]] * len(expected)
    assert [choice["index"] for choice in choices] == list(range(len(expected)))
    assert [request.prompt_token_ids for request in served.core.requests] == expected


@pytest.mark.parametrize("stream", [False, True])
async def test_echo(served: Served, stream: bool) -> None:
    if stream:
        events = await served.openai.completions.create(
            model=MODEL, prompt="Hello ", echo=True, max_tokens=5, stream=True
        )
        text = "".join([chunk.choices[0].text async for chunk in events])
    else:
        answer = await served.openai.completions.create(
            model=MODEL, prompt="Hello ", echo=True, max_tokens=5
        )
        text = answer.choices[0].text
    assert text == "Hello Paris"


async def test_echo_of_token_ids_and_samples(served: Served) -> None:
    ids = served.llm.tokenizer.encode("é", add_special_tokens=False)
    body = {"prompt": [ids, ids], "echo": True, "max_tokens": 1, "n": 2}
    response = await served.http.post("/v1/completions", json=body)
    assert [choice["text"] for choice in response.json()["choices"]] == ["éP"] * 4
    assert response.json()["usage"]["prompt_tokens"] == 4


async def test_stream_of_two_prompts(served: Served) -> None:
    stream = await served.openai.completions.create(
        model=MODEL,
        prompt=["a", "b"],
        max_tokens=4,
        stream=True,
        stream_options={"include_usage": True},
    )
    texts, usage = ["", ""], None
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [ANSWER[:4]] * 2
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (2, 8)


async def test_stop_token_ids(served: Served) -> None:
    (token,) = served.llm.tokenizer.encode("i", add_special_tokens=False)
    body = {"prompt": "a", "stop_token_ids": [token]}
    choice = (await served.http.post("/v1/completions", json=body)).json()["choices"][0]
    assert choice["text"] == "Par"
    assert choice["stop_reason"] == token
    assert choice["finish_reason"] == "stop"


async def test_a_prompt_of_too_many_tokens_is_refused(served: Served) -> None:
    body = {"prompt": "x" * 2000, "max_tokens": 1}
    response = await served.http.post("/v1/completions", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert "2000 input tokens" in error["message"]
    assert error["code"] == "context_length_exceeded"
