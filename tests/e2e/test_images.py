"""Images over HTTP, through the real server, engine and tower: tokens are those of transformers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.running_server import ENGINE, STOKER, Server, free_port, started
from tests.images.pictures import data_url, encoded, picture
from tests.seeing_model import processed, write_seeing_model

NUM_TOKENS = 6
FILES = [encoded(picture(60, 40, seed=seed)) for seed in range(3)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("seeing")


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    pytest.importorskip("transformers")
    return write_seeing_model(folder)


@pytest.fixture(scope="module")
def server(folder: Path, model: Any) -> Iterator[Server]:
    port = free_port()
    command = [*ENGINE, "serve", str(folder), "--port", str(port), "--dtype", "float32"]
    command += ["--served-model-name", "seeing", "--kv-cache-memory-bytes", "8M"]
    with started([*command, "--max-num-batched-tokens", "64"], port) as running:
        yield running


def image(number: int) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(FILES[number])}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


CHATS: dict[str, list[dict[str, Any]]] = {
    "none": [{"role": "user", "content": "What do you see, if there is anything to see here?"}],
    "one": [{"role": "user", "content": [image(0), text("What is it?")]}],
    "other": [{"role": "user", "content": [image(1), text("What is it?")]}],
    "two": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [text("Compare"), image(0), text("with"), image(1)]},
    ],
    "turns": [
        {"role": "user", "content": [image(2), text("What is it?")]},
        {"role": "assistant", "content": "Noise, as far as anybody can tell from so few pixels."},
        {"role": "user", "content": [text("And this?"), image(0)]},
    ],
}


def ask(server: Server, messages: Any) -> dict[str, Any]:
    body = {"messages": messages, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
    answer = httpx.post(
        f"{server.url}/v1/chat/completions", json={**body, "return_token_ids": True}, timeout=120
    )
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def test_tokens_are_those_of_transformers(folder: Path, model: Any, server: Server) -> None:
    transformers: Any = pytest.importorskip("transformers")
    processor = transformers.AutoProcessor.from_pretrained(folder)
    for name, messages in CHATS.items():
        inputs = processed(processor, messages, "pt")
        wanted = model.generate(
            **inputs, max_new_tokens=NUM_TOKENS, min_new_tokens=NUM_TOKENS, do_sample=False
        )
        length = inputs["input_ids"].shape[1]
        found = ask(server, messages)
        assert found["choices"][0]["token_ids"] == wanted[0, length:].tolist(), name
        assert found["usage"]["prompt_tokens"] == length


def test_the_same_image_is_found_again_and_another_is_not(server: Server) -> None:
    def cached(number: int) -> int:
        content = [image(number), text("A question that is longer than a block of the cache.")]
        usage = ask(server, [{"role": "user", "content": content}])["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    httpx.post(f"{server.url}/reset_prefix_cache").raise_for_status()
    assert cached(0) == 0
    assert cached(0) >= 64
    assert cached(1) <= 16  # what stands before the image


def test_a_broken_image_costs_nobody_anything(server: Server) -> None:
    broken = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    body = {"messages": [{"role": "user", "content": [broken]}], "max_tokens": 2}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 400
    assert (
        "Image 1 of the request is no PNG, JPEG, WebP or GIF" in answer.json()["error"]["message"]
    )
    assert ask(server, CHATS["one"])["usage"]["completion_tokens"] == NUM_TOKENS


def test_chat_attaches_an_image(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(FILES[0])
    words = ["chat", server.url, "-m", "What is it?", "--attach", str(path), "-n", str(NUM_TOKENS)]
    found = subprocess.run([STOKER, *words], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    path.write_bytes(FILES[0][:200])
    found = subprocess.run([STOKER, *words], capture_output=True, text=True, timeout=120)
    assert found.returncode != 0
    assert "Image 1 of the request is damaged or cut off" in found.stderr
