"""What a server is found to be able to do, by what it answers."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from app.client.abilities import ServerAbilities, server_abilities
from app.client.errors import BadStatus

CHAT = "/v1/chat/completions"
CARD = {"data": [{"id": "m", "max_model_len": 32768}]}
METRICS = 'vllm:cache_config_info{block_size="16",enable_prefix_caching="%s",x="y"} 1.0\n'


def abilities(key: str | None = None, **answers: tuple[int, Any]) -> ServerAbilities:
    """Of a server with these answers by the last part of a path; anything else is 404."""
    given = {"models": (200, CARD), "completions": (200, said("Hello"))} | answers

    def answer(request: httpx.Request) -> httpx.Response:
        if key and request.headers.get("authorization") != f"Bearer {key}":
            return httpx.Response(401)
        status, body = given.get(request.url.path.rpartition("/")[2], (404, {}))
        text = body if isinstance(body, str) else json.dumps(body)
        return httpx.Response(status, text=text)

    return server_abilities("http://h:1", api_key=key, transport=httpx.MockTransport(answer))


def said(content: str) -> dict[str, Any]:
    return {"choices": [{"message": {"content": content}}]}


def refused(message: str) -> dict[str, Any]:
    return {"error": {"message": message}}


def test_a_server_that_can_all_of_it() -> None:
    found = abilities(
        key="k",
        messages=(400, refused("max_tokens is missing")),
        responses=(422, {"detail": []}),
        metrics=(200, METRICS % "True"),
    )
    assert (found.url, found.model.id, found.model.max_model_len) == ("http://h:1", "m", 32768)
    assert found.tools_refusal is None
    assert (found.has_messages, found.has_responses) == (True, True)
    assert (found.needs_key, found.caches_prefixes, found.shows_thoughts) == (True, True, False)


def test_a_server_that_can_little() -> None:
    found = abilities(
        completions=(400, refused('"auto" tool choice requires\x1b[2J a parser')),
        metrics=(200, METRICS % "False"),
        messages=(405, {}),
    )
    assert found.tools_refusal == '"auto" tool choice requires a parser'
    assert (found.has_messages, found.has_responses) == (False, False)
    assert (found.needs_key, found.caches_prefixes) == (False, False)


@pytest.mark.parametrize(
    ("content", "shows"),
    [("<think>\nHm", True), ("[THINK]a", True), ("<|channel|>analysis", True), ("I think", False)],
)
def test_thoughts_in_answers_are_seen(content: str, shows: bool) -> None:
    assert abilities(completions=(200, said(content))).shows_thoughts is shows


def test_what_is_not_told_is_not_guessed() -> None:
    found = abilities(metrics=(200, "up 1\n"), completions=(200, "no JSON"))
    assert found.caches_prefixes is None
    assert found.shows_thoughts is False


@pytest.mark.parametrize("status", [403, 503])
def test_a_server_that_does_not_serve_is_an_error(status: int) -> None:
    with pytest.raises(BadStatus):
        abilities(completions=(status, refused("later")))
