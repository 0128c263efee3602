"""Keys, phases of the server, and the endpoints that tell about it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import openai
import pytest

from engine.server.state import ServerPhase
from engine.version import __version__
from tests.server.fake_core import FakeCore
from tests.server.serving import MODEL, serving
from tests.waiting import until


async def test_key_guards_v1_only(tiny_folder: Path) -> None:
    async with serving(tiny_folder, FakeCore([1]), api_key="s3cret") as served:
        assert (await served.openai.models.list()).data[0].id == MODEL
        for header in ("", "Bearer", "Bearer s3cre", "Bearer s3crett", "Basic s3cret", "s3cret"):
            response = await served.http.get("/v1/models", headers={"Authorization": header})
            assert response.status_code == 401, header
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"
        response = await served.http.post("/v1/completions", content=b"not even json")
        assert response.status_code == 401
        for path in ("/health", "/metrics", "/version", "/load", "/ping"):
            assert (await served.http.get(path)).status_code == 200
        tokens = await served.http.post("/tokenize", json={"prompt": "ab"})
        assert tokens.status_code == 200
        with pytest.raises(openai.AuthenticationError):
            await served.openai.with_options(api_key="wrong").models.list()


async def test_starting_then_ready_then_stopping(tiny_folder: Path) -> None:
    async with serving(tiny_folder, FakeCore([1]), is_ready=False) as served:
        health = await served.http.get("/health")
        assert (health.status_code, health.json()) == (503, {"status": "starting"})
        response = await served.http.post("/v1/completions", json={"prompt": "a"})
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) > 0
        assert "loading" in response.json()["error"]["message"]
        assert (await served.http.get("/v1/models")).status_code == 503
        assert (await served.http.get("/version")).json() == {"version": __version__}
        assert (await served.http.get("/metrics")).status_code == 200
        served.state.become_ready(served.services)
        health = await served.http.get("/health")
        assert (health.status_code, health.content) == (200, b"")
        assert (await served.http.head("/health")).status_code == 200
        served.state.phase = ServerPhase.STOPPING
        assert (await served.http.get("/health")).json() == {"status": "stopping"}
        served.state.phase = ServerPhase.DEAD
        assert (await served.http.get("/health")).json() == {"status": "dead"}
        response = await served.http.post("/v1/completions", json={"prompt": "a"})
        assert response.status_code == 503


async def test_models_and_load(tiny_folder: Path) -> None:
    async with serving(tiny_folder, FakeCore([1], step_s=0.01)) as served:
        (card,) = (await served.http.get("/v1/models")).json()["data"]
        assert card["id"] == MODEL
        assert card["owned_by"] == "stoker"
        assert card["max_model_len"] == 512
        assert (await served.http.get("/load")).json() == {"server_load": 0}
        body = {"prompt": "a", "max_tokens": 400}
        task = asyncio.create_task(served.http.post("/v1/completions", json=body))
        await until(lambda: served.core.num_running == 1)
        assert (await served.http.get("/load")).json() == {"server_load": 1}
        task.cancel()


async def test_tokenizer_endpoints(tiny_folder: Path) -> None:
    async with serving(tiny_folder, FakeCore([1])) as served:
        body = {"prompt": "é</s>", "return_token_strs": True}
        answer = (await served.http.post("/tokenize", json=body)).json()
        assert answer["count"] == 3
        assert answer["max_model_len"] == 512
        assert answer["token_strs"][-1] == "</s>"
        back = await served.http.post("/detokenize", json={"tokens": answer["tokens"]})
        assert back.json() == {"prompt": "é</s>"}
        chat = {"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": False}
        answer = (await served.http.post("/tokenize", json=chat)).json()
        assert answer["count"] == len("user: hi") + 2
        for body, param in (
            ({}, "prompt"),
            ({"prompt": "a", "messages": chat["messages"]}, "prompt"),
        ):
            response = await served.http.post("/tokenize", json=body)
            assert response.status_code == 400
            assert response.json()["error"]["param"] == param
        response = await served.http.post("/detokenize", json={"tokens": [1, 999]})
        assert response.status_code == 400
        response = await served.http.post("/tokenize", json={"prompt": "a", "model": "other"})
        assert response.status_code == 404
