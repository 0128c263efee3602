"""Shapes of log probabilities on the wire, whole and streamed, over scripted ones."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.frontend.logprobs import LogprobsList, PositionLogprobs
from tests.server.conftest import ANSWER
from tests.server.fake_core import FakeCore
from tests.server.serving import MODEL, Served, serving

ASK: Any = [{"role": "user", "content": "Hi"}]


@pytest.fixture
async def served(tiny_folder: Path, answer_ids: list[int]) -> AsyncGenerator[Served, None]:
    async with serving(tiny_folder, FakeCore(answer_ids, tokens_per_step=2)) as served:
        yield served


async def test_chat_content(served: Served) -> None:
    answer = await served.openai.chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=5, logprobs=True, top_logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [item.token for item in logprobs.content] == list("Paris")
    first = logprobs.content[0]
    assert (first.bytes, first.logprob) == (list(b"P"), -1.0)
    assert [top.logprob for top in first.top_logprobs] == [-0.5, -1.0, -1.5]
    assert first.top_logprobs[1].token == "P"


async def test_chat_stream_has_every_token_once(served: Served) -> None:
    """Also those of half characters, which come before their text."""
    options: Any = {"model": MODEL, "messages": ASK, "logprobs": True, "stop": ["zzz"]}
    whole = await served.openai.chat.completions.create(**options)
    stream = await served.openai.chat.completions.create(**options, stream=True)
    content: list[Any] = []
    async for chunk in stream:
        logprobs = chunk.choices[0].logprobs
        content += (logprobs and logprobs.content) or []
    assert whole.choices[0].logprobs is not None
    assert content == whole.choices[0].logprobs.content
    assert whole.usage is not None
    assert len(content) == whole.usage.completion_tokens
    raw = b"".join(bytes(item.bytes or ()) for item in content[:-1])  # the last one ends the text
    assert raw.decode() == ANSWER == whole.choices[0].message.content
    assert "\\xf0" in [item.token for item in content]


async def test_without_logprobs_there_are_none(served: Served) -> None:
    chat = await served.openai.chat.completions.create(model=MODEL, messages=ASK)
    assert chat.choices[0].logprobs is None
    text = await served.openai.completions.create(model=MODEL, prompt="Hi")
    assert text.choices[0].logprobs is None


@pytest.mark.parametrize("stream", [False, True])
async def test_completions_with_echo(served: Served, stream: bool) -> None:
    options: Any = {"model": MODEL, "prompt": "é!", "echo": True, "logprobs": 2, "max_tokens": 5}
    choices = []
    if stream:
        async for chunk in await served.openai.completions.create(**options, stream=True):
            choices += chunk.choices
    else:
        choices = (await served.openai.completions.create(**options)).choices
    parts = [choice.logprobs for choice in choices if choice.logprobs]
    tokens = [token for part in parts for token in part.tokens or ()]
    tops = [top for part in parts for top in part.top_logprobs or ()]
    assert "".join(choice.text for choice in choices) == "é!Paris"
    assert tokens == ["\\xc3", "\\xa9", *"!Paris"]
    offsets = [offset for part in parts for offset in part.text_offset or ()]
    assert offsets == [0, 0, 1, 2, 3, 4, 5, 6]
    logprobs = [value for part in parts for value in part.token_logprobs or ()]
    assert logprobs == [None] + [-1.0] * 7
    assert tops[0] is None
    assert set(tops[3]) == {"P", next(iter(tops[3]))}
    assert tops[3]["P"] == -1.0
    if stream:
        assert len(parts) > 2


async def test_completions_zero_means_the_chosen_token(served: Served) -> None:
    answer = await served.openai.completions.create(model=MODEL, prompt="a", logprobs=0)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == list(ANSWER[:16])
    assert logprobs.top_logprobs == [{char: -1.0} for char in ANSWER[:16]]


@pytest.mark.parametrize("stream", [False, True])
async def test_max_tokens_0_with_echo_scores_the_prompt(served: Served, stream: bool) -> None:
    options: Any = {"model": MODEL, "prompt": ["ab", "cde"], "echo": True, "logprobs": 1}
    options |= {"max_tokens": 0}
    texts, tokens = ["", ""], [[], []]  # type: ignore[var-annotated]
    if stream:
        chunks = [c async for c in await served.openai.completions.create(**options, stream=True)]
    else:
        chunks = [await served.openai.completions.create(**options)]
        assert chunks[0].usage.completion_tokens == 0
    for choice in [choice for chunk in chunks for choice in chunk.choices]:
        texts[choice.index] += choice.text
        tokens[choice.index] += choice.logprobs.tokens if choice.logprobs else []
    assert texts == ["ab", "cde"]
    assert tokens == [list("ab"), list("cde")]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_prompt_logprobs(served: Served, path: str) -> None:
    body = {"prompt": "abc", "messages": ASK, "max_tokens": 2, "prompt_logprobs": 1}
    document = (await served.http.post(path, json=body)).json()
    holder = document if "chat" in path else document["choices"][0]
    entries = holder["prompt_logprobs"]
    assert len(entries) == document["usage"]["prompt_tokens"]
    assert entries[0] is None
    if "chat" not in path:
        (token,) = served.llm.tokenizer.encode("b", add_special_tokens=False)
        assert entries[1] == {
            str(token): {"logprob": -1.0, "rank": 2, "decoded_token": "b"},
            str(token + 1): {"logprob": -0.5, "rank": 1, "decoded_token": "c"},
        }
    assert document["choices"][0]["logprobs"] is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": "a" * 200, "prompt_logprobs": 19, "n": 100}, "prompt_logprobs"),
        ({"prompt": ["a" * 200] * 100, "echo": True, "logprobs": 19, "max_tokens": 1}, None),
        ({"prompt": "a", "logprobs": 19, "n": 100, "max_tokens": 300}, "logprobs"),
    ],
)
async def test_an_answer_of_too_many_logprobs_is_refused(
    served: Served, fields: dict[str, Any], param: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.server.generation.MAX_LOGPROBS", 300_000)
    answer = await served.http.post("/v1/completions", json=fields)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert "300000" in error["message"]
    assert error["param"] == (param or "prompt_logprobs")
    assert not served.core.requests


async def test_one_sample_may_show_as_much_as_the_context_holds(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.server.generation.MAX_LOGPROBS", 100)
    body = {"prompt": "a", "logprobs": 19, "max_tokens": 30}
    assert (await served.http.post("/v1/completions", json=body)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_large_answers_are_written_beside_the_event_loop(
    served: Served, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[threading.Thread] = set()
    real = LogprobsList.__iter__

    def watched(self: LogprobsList) -> Iterator[PositionLogprobs]:
        threads.add(threading.current_thread())
        return real(self)

    body = {"messages": ASK, "max_tokens": 8, "logprobs": True, "top_logprobs": 3}
    plain = await served.http.post("/v1/chat/completions", json={**body, "stream": stream})
    monkeypatch.setattr("engine.server.streaming._INLINE_LOGPROBS", 0)
    monkeypatch.setattr("engine.server.streaming.Document._PART_BYTES", 100)
    monkeypatch.setattr(LogprobsList, "__iter__", watched)
    aside = await served.http.post("/v1/chat/completions", json={**body, "stream": stream})
    assert threads
    assert threading.main_thread() not in threads
    if not stream:
        first, second = plain.json(), aside.json()
        assert first["choices"] == second["choices"]
        assert int(aside.headers["content-length"]) == len(aside.content)
