"""Why the prefix cache missed, told by a real server of each planted cause: counter and trace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.running_server import Server, gauge, tiny_server

# The date in the first message's place is what makes templates write a chat anew.
DATED = "{{ date }} {% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
BLOCKS = 24


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("model")
    template = Path(folder).with_suffix(".jinja")
    template.write_text(DATED)
    flags = ("--chat-template", str(template), "--num-gpu-blocks-override", str(BLOCKS))
    with tiny_server(
        folder, *flags, "--enable-debug-endpoints", "--max-model-len", "256", "--block-size", "16"
    ) as running:
        yield running


def misses(server: Server, cause: str) -> float:
    labels = f'cause="{cause}",engine="0",model_name="tiny"'
    return gauge(server.url, f"stoker_prefix_cache_misses_total{{{labels}}}")


def asked(server: Server, path: str, **body: Any) -> dict[str, Any] | None:
    """What the answer's trace says of the prefix cache's miss."""
    body = {"model": "tiny", "max_tokens": 4, "temperature": 0, "ignore_eos": True, **body}
    answer = httpx.post(f"{server.url}{path}", json=body, timeout=120)
    answer.raise_for_status()
    name = answer.json()["id"]
    trace = httpx.get(f"{server.url}/debug/requests/{name}-0/trace", timeout=60)
    trace.raise_for_status()
    found: dict[str, Any] | None = trace.json()["core"]["prefix_miss"]
    return found


def completed(server: Server, tokens: list[int], **fields: Any) -> dict[str, Any] | None:
    return asked(server, "/v1/completions", prompt=tokens, **fields)


def test_planted_misses_are_named_with_their_token(server: Server) -> None:
    first = [100 + number % 50 for number in range(70)]
    names = ("no_predecessor", "other_text", "partial_block", "evicted", "other_salt")
    before = {name: misses(server, name) for name in names}
    assert completed(server, first) == miss("no_predecessor", 0, 0)
    assert completed(server, [*first[:41], 99, *first[42:]]) == miss("other_text", 41, 9)
    assert completed(server, first) == miss("partial_block", 70, 6)
    assert completed(server, first, cache_salt="mine") == miss("other_salt", 70, 70)
    for number in range(3):  # more than the pool holds
        completed(server, [10 + number] * 200)
    evicted = completed(server, first)
    assert evicted is not None
    assert (evicted["cause"], evicted["matched_tokens"]) == ("evicted", 70)
    assert evicted["lost_tokens"] >= 54
    assert misses(server, "evicted") - before["evicted"] >= 1
    assert all(misses(server, name) > before[name] for name in names)


def test_the_same_chat_rendered_anew(server: Server) -> None:
    chat = [{"role": "user", "content": "Please tell me a very long story about the sea."}]
    path = "/v1/chat/completions"
    started = asked(server, path, messages=chat, chat_template_kwargs={"date": "It is Monday here"})
    assert started is not None
    more = [*chat, {"role": "assistant", "content": "No."}, {"role": "user", "content": "Why?"}]
    found = asked(server, path, messages=more, chat_template_kwargs={"date": "It is Tuesday here"})
    assert found is not None
    assert found["cause"] == "rendered_anew"
    assert 0 < found["matched_tokens"] < 16


def miss(cause: str, matched: int, lost: int) -> dict[str, Any]:
    return {"cause": cause, "matched_tokens": matched, "lost_tokens": lost}
