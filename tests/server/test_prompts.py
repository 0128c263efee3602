"""Long prompts and slow templates are bounded first and then worked on beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.core.grammar_checker import GrammarChecker
from engine.errors import RequestError
from engine.frontend.chat_template import ChatTemplate
from engine.frontend.daemon_thread import in_daemon_thread
from engine.frontend.tokenizer import Tokenizer
from engine.sampling_params import MAX_WORD_CHARS, StructuredOutputsParams
from engine.server.rendering import Rendering
from tests.server.fake_core import READY, FakeCore
from tests.server.serving import Served, serving

ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def bodies(text: str) -> dict[str, dict[str, Any]]:
    return {
        "/v1/completions": {"prompt": text, "max_tokens": 1},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": text}]},
        "/v1/embeddings": {"input": text},
        "/tokenize": {"prompt": text},
    }


@pytest.mark.parametrize("path", bodies(""))
async def test_text_that_cannot_fit_is_refused_before_it_is_tokenised(
    served: Served, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = READY.max_model_len * served.llm.tokenizer.max_chars_per_token
    monkeypatch.setattr("engine.server.routes.introspection.MAX_UNBOUND_CHARS", 0)
    for name in ("encode", "encode_long"):
        monkeypatch.setattr(Tokenizer, name, None)
    answer = await served.http.post(path, json=bodies("a" * (limit + 1))[path])
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert str(limit) in error["message"]


def test_no_token_is_longer_than_the_limit_says(tiny_folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(tiny_folder)
    texts = (tokenizer.decode([token], skip_special_tokens=False) for token in range(250))
    assert max(map(len, texts)) <= tokenizer.max_chars_per_token


async def test_long_texts_are_tokenised_in_a_thread_and_as_ever(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    real = Tokenizer.encode_long

    def watched(self: Tokenizer, texts: Any, *, add_special_tokens: bool) -> list[list[int]]:
        threads.append(threading.current_thread())
        return real(self, texts, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(Tokenizer, "encode_long", watched)
    text = "ab c, " * 2000
    answer = (await served.http.post("/tokenize", json={"prompt": text})).json()
    assert answer["tokens"] == served.llm.tokenizer.encode(text, add_special_tokens=True)
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()
    body = {"tokens": answer["tokens"]}
    back = (await served.http.post("/detokenize", json=body)).json()["prompt"]
    assert back == served.llm.tokenizer.decode(answer["tokens"], skip_special_tokens=False)


@pytest.mark.parametrize("field", ["stop", "bad_words"])
async def test_long_words_are_refused(served: Served, field: str) -> None:
    for length, status in ((MAX_WORD_CHARS, 200), (MAX_WORD_CHARS + 1, 400)):
        body = {"prompt": "a", "max_tokens": 1, field: ["a" * length]}
        answer = await served.http.post("/v1/completions", json=body)
        assert answer.status_code == status


async def test_samples_of_a_prompt_are_checked_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    real = served.llm.input_processor.check_token_ids

    def watched(token_ids: Any, param: str) -> None:
        calls.append(param)
        real(token_ids, param)

    monkeypatch.setattr(served.llm.input_processor, "check_token_ids", watched)
    body = {"prompt": "abc", "n": 8, "max_tokens": 1, "seed": 3}
    answer = await served.http.post("/v1/completions", json=body)
    assert len(answer.json()["choices"]) == 8
    assert calls.count("prompt") == 1
    seeds = [request.sampling_params.seed for request in served.core.requests]
    assert seeds == [3, 4, 5, 6, 7, 8, 9, 10]


async def test_a_template_is_rendered_while_others_are_answered(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    was_answered = threading.Event()
    real = ChatTemplate.render

    def waits(self: ChatTemplate, *args: Any, **options: Any) -> str:
        assert was_answered.wait(60)
        return real(self, *args, **options)

    monkeypatch.setattr(ChatTemplate, "render", waits)
    chat = asyncio.create_task(
        served.http.post("/v1/chat/completions", json=bodies("hi")["/v1/chat/completions"])
    )
    assert (await served.http.get("/health")).status_code == 200
    was_answered.set()
    assert (await chat).status_code == 200


async def test_a_template_without_end_is_ended() -> None:
    template = ChatTemplate(ENDLESS, {})
    started: list[threading.Thread] = []

    def render() -> str:
        started.append(threading.current_thread())
        return template.render([])

    with pytest.raises(RequestError, match="template was not done"):
        await Rendering(limit_s=0.05).run(render)
    (thread,) = started
    await asyncio.to_thread(thread.join)


@pytest.mark.parametrize("limit_s", [None, 60.0])
async def test_what_a_thread_returns_or_raises_arrives(limit_s: float | None) -> None:
    def fails() -> int:
        raise KeyError("x")

    works: Callable[[], int] = lambda: 7  # noqa: E731
    assert await in_daemon_thread(works, limit_s=limit_s) == 7
    with pytest.raises(KeyError):
        await in_daemon_thread(fails, limit_s=limit_s)


async def test_who_leaves_while_the_request_is_prepared_ends_that_work(
    tiny_folder: Path, answer_ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    was_cancelled, has_begun = asyncio.Event(), asyncio.Event()

    async def waits(self: GrammarChecker, spec: StructuredOutputsParams) -> StructuredOutputsParams:
        has_begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            was_cancelled.set()
        return spec

    monkeypatch.setattr(GrammarChecker, "check", waits)
    async with serving(tiny_folder, FakeCore(answer_ids)) as served:
        body = {"prompt": "a", "guided_regex": "a"}
        asking = asyncio.create_task(served.http.post("/v1/completions", json=body))
        await has_begun.wait()
        asking.cancel()
        await was_cancelled.wait()
