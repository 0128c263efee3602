"""Which model answers and how long its context is, as each engine tells it."""

from __future__ import annotations

import httpx
import pytest

from app.client.errors import BadAnswer, Unauthorized
from app.client.served_model import ServedModel, served_model


def models(**answers: tuple[int, object]) -> httpx.MockTransport:
    def handle(request: httpx.Request) -> httpx.Response:
        status, document = answers.get(request.url.path.rpartition("/")[2], (404, {}))
        return httpx.Response(status, json=document)

    return httpx.MockTransport(handle)


def test_length_of_the_context_from_each_engine() -> None:
    cards = {"data": [{"id": "a", "max_model_len": 10}, {"id": "b", "max_model_len": 20}]}
    vllm = models(models=(200, cards))
    assert served_model("http://h", transport=vllm) == ServedModel("a", 10, ("a", "b"))
    assert served_model("http://h", "b", transport=vllm).max_model_len == 20
    props = {"default_generation_settings": {"n_ctx": 4096}}
    llama = models(models=(200, {"data": [{"id": "x.gguf"}]}), props=(200, props))
    assert served_model("http://h", transport=llama).max_model_len == 4096
    other = models(models=(200, {"data": [{"id": "gpt"}]}))
    assert served_model("http://h", transport=other).max_model_len is None


def test_a_server_without_a_list_answers_for_a_named_model() -> None:
    assert served_model("http://h", "gpt", transport=models()) == ServedModel("gpt", None, ())
    empty = models(models=(200, {"data": []}))
    with pytest.raises(BadAnswer, match="--model"):
        served_model("http://h", transport=empty)
    with pytest.raises(Unauthorized):
        served_model("http://h", "gpt", transport=models(models=(401, {})))
