"""Images of the three chat APIs: what reaches the engine, and what is refused.

The application and the process that unpacks images are real; only the engine is scripted.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from engine.frontend.chat_template import load_chat_template
from engine.frontend.tokenizer import Tokenizer
from engine.images.jobs import MAX_IMAGE_BYTES
from engine.messages import EngineCoreRequest
from engine.server.image_room import ImageRoom
from engine.server.images import ImageInputs, image_inputs
from tests.core.conftest import engine_config
from tests.images.broken_files import hostile_urls
from tests.images.pictures import data_url, encoded, picture
from tests.places import ROOT
from tests.seeing_model import (
    BOI,
    EOI,
    SOFT,
    TOKENS_PER_IMAGE,
    VOCAB,
    processed,
    write_seeing_files,
)
from tests.server.fake_core import READY, FakeCore
from tests.server.serving import Served, prompt_of, serving
from tests.tiny_model import write_tiny_llama
from tests.waiting import until

MOST = 3
URLS = [data_url(encoded(picture(seed=seed))) for seed in range(MOST + 1)]
Parts = list[dict[str, Any]]


def image(number: int = 0) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": URLS[number], "detail": "high"}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


CHATS: dict[str, list[dict[str, Any]]] = {
    "one": [{"role": "user", "content": [image(), text("What is it?")]}],
    "two": [{"role": "user", "content": [image(), image(1), text(" Compare them. ")]}],
    "middle": [{"role": "user", "content": [text("First "), image(), text(" and then")]}],
    "alone": [{"role": "user", "content": [image()]}],
    "system": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [text("Look:"), image(2)]},
    ],
    "earlier turn": [
        {"role": "system", "content": [text("Be brief.")]},
        {"role": "user", "content": [image(), text("What is it?")]},
        {"role": "assistant", "content": [text("Noise.")]},
        {"role": "user", "content": [text("And"), text("this?"), image(1)]},
    ],
    "none": [{"role": "user", "content": [text("Only"), text("words")]}],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_seeing_files(tmp_path_factory.mktemp("seeing"))


def inputs_of(folder: Path, **flags: Any) -> ImageInputs:
    tokenizer = Tokenizer.from_folder(folder)
    template = load_chat_template(folder, tokenizer.special_tokens)
    return image_inputs(engine_config(folder, **flags), template, tokenizer)


@pytest.fixture
async def served(folder: Path) -> AsyncGenerator[Served, None]:
    images = inputs_of(folder, limit_mm_per_prompt=json.dumps({"image": MOST}))
    core = FakeCore([5, 6])
    async with serving(folder, core, in_process=True, images=images, vocab_size=VOCAB) as running:
        yield running


async def ask(served: Served, messages: Any, **fields: Any) -> httpx.Response:
    body = {"messages": messages, "max_tokens": 2, **fields}
    return await served.http.post("/v1/chat/completions", json=body)


async def test_tokens_and_pixels_are_those_of_transformers(served: Served, folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    processor = transformers.AutoProcessor.from_pretrained(folder)
    for name, messages in CHATS.items():
        expected = processed(processor, messages)
        answer = await ask(served, messages)
        assert answer.status_code == 200, (name, answer.text)
        request = served.core.requests[-1]
        token_ids = expected["input_ids"][0].tolist()
        assert request.prompt_token_ids == token_ids, name
        assert answer.json()["usage"]["prompt_tokens"] == len(token_ids)
        _check_images(request, expected.get("pixel_values", []))


def _check_images(request: EngineCoreRequest, pixels: Any) -> None:
    """That the pixels are these, and stand where the soft tokens do."""
    token_ids = request.prompt_token_ids
    assert len(request.images) == len(pixels)
    for found, wanted in zip(request.images, pixels, strict=True):
        assert np.array_equal(np.frombuffer(found.pixels, "<f4").reshape(found.shape), wanted)
        end = found.offset + found.num_tokens
        assert token_ids[found.offset : end] == [SOFT] * TOKENS_PER_IMAGE
        assert (token_ids[found.offset - 1], token_ids[end]) == (BOI, EOI)


async def test_the_same_image_has_the_same_digest_and_another_has_another(served: Served) -> None:
    for number in (0, 0, 1):
        await ask(served, [{"role": "user", "content": [image(number)]}])
    first, same, other = (request.images[0].digest for request in served.core.requests)
    assert first == same != other
    assert len(first) == 32


async def test_messages_and_responses_make_the_same_prompt(served: Served) -> None:
    url, data = URLS[0], URLS[0].partition(",")[2]
    await ask(served, [{"role": "user", "content": [text("Look"), image(), text("here")]}])
    blocks = [
        {"type": "text", "text": "Look"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}},
        {"type": "text", "text": "here"},
    ]
    body: dict[str, Any] = {"messages": [{"role": "user", "content": blocks}], "max_tokens": 2}
    answer = await served.http.post("/v1/messages", json=body)
    assert answer.status_code == 200, answer.text
    counted = await served.http.post("/v1/messages/count_tokens", json=body)
    parts = [
        {"type": "input_text", "text": "Look"},
        {"type": "input_image", "image_url": url, "detail": "auto"},
        {"type": "input_text", "text": "here"},
    ]
    body = {"input": [{"role": "user", "content": parts}], "max_output_tokens": 2}
    answered = await served.http.post("/v1/responses", json=body)
    assert answered.status_code == 200, answered.text
    chat, message, response = served.core.requests
    assert chat.prompt_token_ids == message.prompt_token_ids == response.prompt_token_ids
    assert chat.images == message.images == response.images
    assert answer.json()["usage"]["input_tokens"] == len(chat.prompt_token_ids)
    assert counted.json()["input_tokens"] == len(chat.prompt_token_ids)
    assert answered.json()["usage"]["input_tokens"] == len(chat.prompt_token_ids)


async def test_tokenize_counts_images_without_reading_them(served: Served) -> None:
    await ask(served, CHATS["two"])
    broken = json.loads(json.dumps(CHATS["two"]).replace(URLS[1], "data:;base64,AAAA"))
    found = await served.http.post("/tokenize", json={"messages": broken})
    assert found.json()["tokens"] == served.core.requests[0].prompt_token_ids


async def test_more_images_than_the_limit_are_refused(served: Served) -> None:
    answer = await ask(served, [{"role": "user", "content": [image(n) for n in range(MOST + 1)]}])
    assert answer.status_code == 400
    assert f"At most {MOST} image(s) may be provided in one prompt, and 4 came" in answer.text
    assert served.core.requests == []


async def test_a_prompt_that_is_too_long_for_its_images_is_refused(served: Served) -> None:
    longest = READY.max_model_len
    cases: list[tuple[int, dict[str, Any]]] = [
        (longest - 20, {}),
        (longest - 20, {"truncate_prompt_tokens": -1}),
        (200, {"truncate_prompt_tokens": 100}),
    ]
    for length, fields in cases:
        content = [text("x" * length), image(), image(1)]
        answer = await ask(served, [{"role": "user", "content": content}], **fields)
        assert answer.status_code == 400
        assert "input tokens" in answer.json()["error"]["message"]
        assert answer.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([text("<start_of_image>"), image()], "2 places for an image"),
        ([text("<image_soft_token>"), image()], "token that stands for a part of an image"),
        ([{"type": "image_url"}], "look like"),
        ([{"type": "image_url", "image_url": {"url": 5}}], "look like"),
        ([{"type": "input_audio", "input_audio": {}}], "'input_audio' are not supported"),
        ([{"type": "image_url", "image_url": "http://a.example/x.png"}], "--allowed-media-domains"),
        ([{"type": "image_url", "image_url": "file:///etc/passwd"}], "file of this machine"),
        ([{"type": "image_url", "image_url": "/etc/passwd"}], "is no data: URI"),
        ([image(), {"type": "image_url", "image_url": "data:image/png;base64,AAAA"}], "Image 2 of"),
    ],
)
async def test_what_cannot_be_read_is_said(served: Served, content: Parts, said: str) -> None:
    answer = await ask(served, [{"role": "user", "content": content}])
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]
    assert served.core.requests == []


async def test_images_of_many_requests_or_samples_have_an_end(folder: Path) -> None:
    images = inputs_of(folder)
    assert images.reading is not None
    two = 2 * images.reading.bytes_each + len(URLS[0]) + 100
    images = dataclasses.replace(
        images, reading=dataclasses.replace(images.reading, room=ImageRoom(two))
    )
    core = FakeCore([5, 6])
    async with serving(folder, core, in_process=True, images=images, vocab_size=VOCAB) as served:
        answer = await ask(served, CHATS["one"], n=3)
        assert (answer.status_code, "or lower n." in answer.text) == (400, True), answer.text
        assert (await ask(served, CHATS["one"], n=2)).status_code == 200
        core.is_paused = True
        held = asyncio.create_task(ask(served, CHATS["one"], n=2))
        await until(lambda: len(core.requests) == 4)
        refused = await ask(served, CHATS["one"])
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert "images of other requests take" in refused.json()["error"]["message"]
        assert (await ask(served, CHATS["one"], n=0)).json()["error"]["param"] == "n"
        core.resume()
        assert (await held).status_code == 200
        for fields in ({}, {"stream": True}, {"logit_bias": {"-1": 1}}, {"max_tokens": 9999}):
            await ask(served, CHATS["one"], **fields)
            assert served.services.images.reading is not None
            assert served.services.images.reading.room.num_bytes == 0, fields
        broken = [{"role": "user", "content": [image(), {**image(), "image_url": "data:,"}]}]
        assert (await ask(served, broken)).status_code == 400
        assert (await ask(served, CHATS["one"], n=2)).status_code == 200


async def test_a_message_of_parts_is_gone_on_with(served: Served) -> None:
    begun = {"role": "assistant", "content": [text("Ignored"), text("I see ")]}
    for content, status in ([*begun["content"]], 200), ([*begun["content"], image()], 400):
        messages = [*CHATS["one"], {**begun, "content": content}]
        answer = await ask(served, messages, continue_final_message=True)
        assert answer.status_code == status, answer.text
    assert len(served.core.requests) == 1
    assert prompt_of(served).endswith("IgnoredI see")
    own = [{"role": "user", "content": [image(), text("I see ")]}]
    answer = await ask(served, own, continue_final_message=True, echo=True)
    assert answer.json()["choices"][0]["message"]["content"].startswith("I see ")


async def test_hostile_images_are_refused_and_take_no_memory(served: Served) -> None:
    def held() -> int:
        children = psutil.Process().children(recursive=True)
        return sum(process.memory_info().rss for process in (psutil.Process(), *children))

    urls = hostile_urls()
    assert len(urls) >= 200
    await ask(served, CHATS["one"])
    before = held()
    for start in range(0, len(urls), 8):
        answers = await asyncio.gather(
            *(
                ask(
                    served, [{"role": "user", "content": [{"type": "image_url", "image_url": url}]}]
                )
                for url in urls[start : start + 8]
            )
        )
        for url, answer in zip(urls[start : start + 8], answers, strict=True):
            assert answer.status_code == 400, (url[:200], answer.text)
            assert answer.json()["error"]["message"].startswith("Image 1 of the request ")
    assert held() - before < 200 << 20
    assert len(served.core.requests) == 1
    assert (await ask(served, CHATS["one"])).status_code == 200


async def test_a_file_of_the_largest_size_is_read_and_one_more_byte_is_not(served: Served) -> None:
    file = encoded(picture())
    for extra, status in ((0, 200), (1, 400)):
        data = file + b"\0" * (MAX_IMAGE_BYTES - len(file) + extra)
        content = [{"type": "image_url", "image_url": {"url": data_url(data)}}]
        answer = await ask(served, [{"role": "user", "content": content}])
        assert answer.status_code == status, answer.text[:500]
    assert "is larger than 20 MiB" in answer.text


async def test_a_model_without_a_tower_says_so(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    images = inputs_of(folder)
    assert images.reading is None
    async with serving(folder, FakeCore([5]), in_process=True, images=images) as served:
        answer = await ask(served, CHATS["one"])
        assert answer.status_code == 400
        message = answer.json()["error"]["message"]
        assert message.startswith("Images are not taken: tiny (LlamaForCausalLM) is served as a")
        assert (await ask(served, [{"role": "user", "content": [text("Hi")]}])).status_code == 200


def test_what_keeps_a_model_with_a_tower_from_images(folder: Path, tmp_path: Path) -> None:
    assert "--limit-mm-per-prompt" in inputs_of(folder, limit_mm_per_prompt='{"image": 0}').obstacle
    other = write_seeing_files(tmp_path / "other", mm_tokens_per_image=16)
    assert "gives an image 4 tokens, and its config.json 16" in inputs_of(other).obstacle
    blind = write_seeing_files(tmp_path / "blind")
    (blind / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert "no place for them" in inputs_of(blind).obstacle
    bare = write_seeing_files(tmp_path / "bare")
    (bare / "preprocessor_config.json").unlink()
    (bare / "processor_config.json").unlink()
    assert "holds no preprocessor_config.json" in inputs_of(bare).obstacle


def test_the_documentation_names_the_limits() -> None:
    words = (ROOT / "docs" / "api.md").read_text()
    assert f"{MAX_IMAGE_BYTES >> 20} MiB" in words
    assert "64 million pixels" in words
