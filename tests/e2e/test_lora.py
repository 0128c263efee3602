"""A server with LoRA adapters over HTTP: two of the start, others loaded and unloaded, the key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.running_server import Server, tiny_server
from tests.models.peft_adapters import save_adapter
from tests.tiny_model import write_tiny_llama

KEY = {"Authorization": "Bearer secret-of-the-test"}
PROMPT = [5, 9, 2, 33, 71, 8, 12] * 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaForCausalLM

    folder = tmp_path_factory.mktemp("model")
    base = LlamaForCausalLM.from_pretrained(write_tiny_llama(folder))
    for seed, name in enumerate("abc"):
        save_adapter(base, folder / name, seed=seed, r=4 if name == "b" else 8)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    flags = ["--enable-lora", "--max-loras", "2", "--max-cpu-loras", "3", "--max-lora-rank", "8"]
    flags += ["--lora-modules", f"a={folder / 'a'}", f'{{"name": "b", "path": "{folder / "b"}"}}']
    env = {"STOKER_API_KEY": "secret-of-the-test"}
    with tiny_server(folder, *flags, env=env) as running:
        yield running


def post(server: Server, path: str, body: dict[str, Any], **options: Any) -> httpx.Response:
    options = {"headers": KEY, **options}
    return httpx.post(f"{server.url}{path}", json=body, timeout=60, **options)


def complete(server: Server, model: str | None) -> httpx.Response:
    body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "return_token_ids": True}
    return post(server, "/v1/completions", {**body, "model": model})


def generated(server: Server, model: str | None) -> list[int]:
    answer = complete(server, model)
    assert answer.status_code == 200, answer.text
    document = answer.json()
    assert document["model"] == (model or "tiny")
    ids: list[int] = document["choices"][0]["token_ids"]
    return ids


def names(server: Server) -> list[str]:
    cards = httpx.get(f"{server.url}/v1/models", headers=KEY, timeout=60).json()["data"]
    return [card["id"] for card in cards]


def test_each_name_is_a_model(server: Server, folder: Path) -> None:
    assert names(server)[:3] == ["tiny", "a", "b"]
    card = httpx.get(f"{server.url}/v1/models/b", headers=KEY, timeout=60).json()
    assert (card["root"], card["parent"]) == (str(folder / "b"), "tiny")
    answers = [generated(server, name) for name in (None, "tiny", "a", "b")]
    assert answers[0] == answers[1]
    assert len({tuple(answer) for answer in answers}) == 3
    chat = {"messages": [{"role": "user", "content": "hi"}], "model": "a", "max_tokens": 3}
    assert post(server, "/v1/chat/completions", chat).json()["model"] == "a"


def test_an_adapter_comes_and_goes(server: Server, folder: Path) -> None:
    assert complete(server, "late").status_code == 404
    body = {"lora_name": "late", "lora_path": str(folder / "c")}
    loaded = post(server, "/v1/load_lora_adapter", body)
    assert (loaded.status_code, loaded.text) == (
        200,
        "Success: LoRA adapter 'late' added successfully.",
    )
    assert names(server) == ["tiny", "a", "b", "late"]
    first = generated(server, "late")
    again = post(server, "/v1/load_lora_adapter", body)
    assert again.status_code == 400
    assert "is loaded already" in again.text
    many = post(server, "/v1/load_lora_adapter", {**body, "lora_name": "more"})
    assert "3 LoRA adapters are loaded and --max-cpu-loras is 3" in many.text

    unloaded = post(server, "/v1/unload_lora_adapter", {"lora_name": "late"})
    assert unloaded.status_code == 200
    gone = complete(server, "late")
    assert gone.status_code == 404
    message = gone.json()["error"]["message"]
    assert message == "The model `late` does not exist; this server serves `tiny`, `a`, `b`."
    assert post(server, "/v1/unload_lora_adapter", {"lora_name": "late"}).status_code == 404

    other = {"lora_name": "late", "lora_path": str(folder / "b")}  # the name with other weights
    assert post(server, "/v1/load_lora_adapter", other).status_code == 200
    assert generated(server, "late") == generated(server, "b") != first
    post(server, "/v1/unload_lora_adapter", {"lora_name": "late"})


def test_what_cannot_be_loaded_is_refused(server: Server, folder: Path, tmp_path: Path) -> None:
    cases = {
        str(tmp_path / "none"): "No such adapter folder",
        str(tmp_path): "holds no adapter_config.json",
    }
    for path, reason in cases.items():
        answer = post(server, "/v1/load_lora_adapter", {"lora_name": "x", "lora_path": path})
        assert answer.status_code == 400
        assert reason in answer.json()["error"]["message"]
    assert "x" not in names(server)
    assert len(generated(server, "a")) == 8  # it goes on


def test_both_routes_need_the_key(server: Server) -> None:
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        answer = post(server, path, {"lora_name": "a", "lora_path": "/"}, headers={})
        assert answer.status_code == 401
    assert "secret-of-the-test" not in server.text
