from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.server.conftest import ANSWER
from tests.server.fake_core import FakeCore
from tests.server.serving import MODEL, Served, serving
from tests.waiting import until

ASK: Any = [{"role": "user", "content": "What is the capital of France?"}]
PROMPT = "<s>user: What is the capital of France?</s><s>assistant: "
NUM_PROMPT_TOKENS = len(PROMPT) - 2 * len("<s>") + 2 - len("</s>") + 1


@pytest.fixture
async def served(tiny_folder: Path, answer_ids: list[int]) -> AsyncGenerator[Served, None]:
    async with serving(tiny_folder, FakeCore(answer_ids)) as served:
        yield served


async def test_plain_answer(served: Served) -> None:
    answer = await served.openai.chat.completions.create(model=MODEL, messages=ASK, temperature=0)
    (choice,) = answer.choices
    assert choice.message.content == ANSWER
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == MODEL
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == NUM_PROMPT_TOKENS
    assert answer.usage.completion_tokens == len(ANSWER.encode()) + 1
    assert answer.usage.total_tokens == NUM_PROMPT_TOKENS + answer.usage.completion_tokens
    request = served.core.requests[0]
    assert len(request.prompt_token_ids) == NUM_PROMPT_TOKENS
    assert request.sampling_params.max_tokens == 512 - NUM_PROMPT_TOKENS


async def test_length_limit_in_both_spellings(served: Served) -> None:
    create = served.openai.chat.completions.create
    old = await create(model=MODEL, messages=ASK, max_tokens=5)
    new = await create(model=MODEL, messages=ASK, max_tokens=9, max_completion_tokens=5)
    for answer in (old, new):
        assert answer.choices[0].message.content == ANSWER[:5]
        assert answer.choices[0].finish_reason == "length"


async def test_stream(served: Served) -> None:
    stream = await served.openai.chat.completions.create(
        model=MODEL, messages=ASK, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == ANSWER
    assert not any("\ufffd" in text for text in texts)
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(ANSWER.encode()) + 1
    assert len({chunk.id for chunk in chunks}) == 1


async def test_bytes_of_a_stream(served: Served) -> None:
    body = {"messages": ASK, "stream": True, "max_tokens": 2}
    response = await served.http.post("/v1/chat/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "P"},
        {"content": "a"},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "length"]
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    assert not any("usage" in chunk for chunk in chunks)


async def test_continuous_usage(served: Served) -> None:
    body = {
        "messages": ASK,
        "stream": True,
        "max_tokens": 3,
        "stream_options": {"continuous_usage_stats": True},
    }
    response = await served.http.post("/v1/chat/completions", json=body)
    chunks = [json.loads(e.removeprefix("data: ")) for e in response.text.split("\n\n")[:-2]]
    assert [c["usage"]["completion_tokens"] for c in chunks if "usage" in c] == [1, 2, 3]


async def test_stop_string_and_its_abort(served: Served) -> None:
    answer = await served.openai.chat.completions.create(
        model=MODEL, messages=ASK, stop=[" capital", "zzz"]
    )
    assert answer.choices[0].message.content == "Paris is the"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].model_extra == {"stop_reason": " capital"}
    await until(lambda: len(served.core.aborted) == 1)


async def test_stream_never_shows_a_stop_string(served: Served) -> None:
    stream = await served.openai.chat.completions.create(
        model=MODEL, messages=ASK, stream=True, stop="France."
    )
    text = "".join([c.choices[0].delta.content or "" async for c in stream])
    assert text == "Paris is the capital of "


async def test_ignore_eos_and_extra_fields(served: Served) -> None:
    answer = await served.openai.chat.completions.create(
        model=MODEL,
        messages=ASK,
        max_tokens=100,
        extra_body={"ignore_eos": True, "top_k": 3, "min_p": 0.1, "some_unknown_field": [1]},
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 100
    params = served.core.requests[0].sampling_params
    assert (params.top_k, params.min_p) == (3, 0.1)


@pytest.mark.parametrize("stream", [False, True])
async def test_several_samples(served: Served, stream: bool) -> None:
    body = {"messages": ASK, "n": 3, "seed": 7, "stream": stream}
    response = await served.http.post("/v1/chat/completions", json=body)
    texts = ["", "", ""]
    if stream:
        for event in response.text.split("\n\n")[:-2]:
            (choice,) = json.loads(event.removeprefix("data: "))["choices"]
            texts[choice["index"]] += choice["delta"].get("content", "")
    else:
        document = response.json()
        texts = [choice["message"]["content"] for choice in document["choices"]]
        assert document["usage"]["prompt_tokens"] == NUM_PROMPT_TOKENS
        assert document["usage"]["completion_tokens"] == 3 * (len(ANSWER.encode()) + 1)
    assert texts == [ANSWER] * 3
    assert [r.sampling_params.seed for r in served.core.requests] == [7, 8, 9]


async def test_content_parts_and_system_message(served: Served) -> None:
    messages: Any = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    await served.openai.chat.completions.create(model=MODEL, messages=messages)
    prompt = served.llm.tokenizer.decode(
        served.core.requests[0].prompt_token_ids, skip_special_tokens=False
    )
    assert prompt == "<s>system: Be brief.</s><s>user: a\nb</s><s>assistant: "


async def test_thirty_two_streams_at_once(served: Served) -> None:
    async def one(limit: int) -> str:
        stream = await served.openai.chat.completions.create(
            model=MODEL, messages=ASK, stream=True, max_tokens=limit
        )
        return "".join([c.choices[0].delta.content or "" async for c in stream])

    texts = await asyncio.gather(*(one(n) for n in range(1, 33)))
    assert texts == [ANSWER[:n] for n in range(1, 33)]
    assert served.core.num_running == 0
    assert served.llm.num_unfinished == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
async def test_client_that_leaves_frees_its_request(served: Served, stream: bool, n: int) -> None:
    body = {"messages": ASK, "stream": stream, "n": n, "ignore_eos": True}
    served.core.step_s = 0.02

    async def ask() -> None:
        async with served.http.stream("POST", "/v1/chat/completions", json=body) as response:
            await response.aread()

    task = asyncio.create_task(ask())
    await until(lambda: served.core.num_running == n)
    task.cancel()
    await until(lambda: len(served.core.aborted) == n)
    assert served.core.num_running == 0
    await until(lambda: served.llm.num_unfinished == 0)


async def test_refusals_are_the_clients_exceptions(served: Served) -> None:
    create = served.openai.chat.completions.create
    with pytest.raises(openai.NotFoundError, match="gpt-4"):
        await create(model="gpt-4", messages=ASK)
    with pytest.raises(openai.BadRequestError, match="max_tokens") as caught:
        await create(model=MODEL, messages=ASK, max_tokens=9999)
    assert caught.value.param == "max_tokens"
    assert caught.value.code == "context_length_exceeded"


async def test_dead_core_fails_all_at_once(served: Served) -> None:
    served.core.is_paused = True
    tasks = [
        asyncio.create_task(
            served.http.post("/v1/chat/completions", json={"messages": ASK, "stream": stream})
        )
        for stream in (False, True)
    ]
    await until(lambda: served.core.num_running == 2)
    served.core.die()
    for response in await asyncio.gather(*tasks):
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "engine_dead"
        assert "retry-after" in response.headers


async def test_core_that_dies_during_a_stream(served: Served) -> None:
    served.core.step_s = 0.02
    stream = await served.openai.chat.completions.create(model=MODEL, messages=ASK, stream=True)
    await anext(stream)
    served.core.die()
    with pytest.raises(openai.APIError, match="engine is dead"):
        async for _ in stream:
            pass
