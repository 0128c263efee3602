"""Bodies are counted before they are read, and no list is read beyond its first wrong entry."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from engine.server.http import body_limits
from engine.server.http.body_limits import MAX_JSON_VALUES, MAX_MESSAGES, MAX_TOOLS, ValueCounter
from engine.server.protocol import Body, ChatBody, CompletionBody, DetokenizeBody
from engine.server.routes.embeddings import EmbeddingBody
from tests.server.serving import Served

_TEXTS = st.text(alphabet='a,"\\[]{}:é\n', max_size=8)
_JSON = st.recursive(
    st.none() | st.integers() | _TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_TEXTS, inner, max_size=5),
    max_leaves=20,
)


def weight(value: Any) -> int:
    if isinstance(value, dict):
        return 2 * len(value) + weight(list(value.values()))
    if not isinstance(value, list):
        return 0
    return 8 + max(len(value) - 1, 0) + sum(map(weight, value))


@given(_JSON, st.lists(st.integers(0, 200), max_size=6), st.booleans())
@example({'"': None}, [3, 3], True).via("a piece of no bytes behind a backslash")
def test_values_are_counted_wherever_the_body_is_cut(
    value: Any, cuts: list[int], ascii_only: bool
) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    counter = ValueCounter()
    places = [0, *sorted(cuts), len(body)]
    found = sum(counter.feed(body[start:end]) for start, end in itertools.pairwise(places))
    assert found == weight(value)


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize", "/detokenize", "/v1/embeddings"])
async def test_too_many_values_are_refused_without_being_read(
    served: Served, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.server.api.parse_body", None)
    values = b"[1" + b",1" * MAX_JSON_VALUES + b"]"
    for field in (b"prompt", b"tokens", b"input", b"unknown"):
        answer = await served.http.post(
            path,
            content=b'{"%s":%s}' % (field, values),
            headers={"Content-Type": "application/json"},
        )
        assert answer.status_code == 413
        assert str(MAX_JSON_VALUES) in answer.json()["error"]["message"]


async def test_commas_in_a_text_are_no_values(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_limits, "MAX_JSON_VALUES", 28)
    answer = await served.http.post("/v1/completions", json={"prompt": '\\"a,b,\\' * 4})
    assert answer.status_code == 200
    answer = await served.http.post("/v1/completions", json={"prompt": [1] * 12})
    assert answer.status_code == 413


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (CompletionBody, {"prompt": [1.5] * 1000}),
        (CompletionBody, {"prompt": [[1.5] * 9] * 1000}),
        (CompletionBody, {"prompt": "a", "bad_words": [1] * 1000}),
        (CompletionBody, {"prompt": "a", "stop": [1] * 1000}),
        (CompletionBody, {"prompt": "a", "guided_choice": [1] * 1000}),
        (CompletionBody, {"prompt": "a", "allowed_token_ids": ["x"] * 1000}),
        (ChatBody, {"messages": [{}] * 1000}),
        (ChatBody, {"messages": [{"role": "user", "content": [1] * 1000}]}),
        (ChatBody, {"messages": [{"role": "a", "tool_calls": [1] * 1000}]}),
        (ChatBody, {"messages": [{"role": "user"}], "tools": [1] * 100}),
        (EmbeddingBody, {"input": [1.5] * 1000}),
        (DetokenizeBody, {"tokens": ["x"] * 1000}),
    ],
)
def test_a_list_is_refused_at_its_first_wrong_entry(
    kind: type[Body], wrong: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate_json(json.dumps(wrong))
    assert caught.value.error_count() < 10


async def test_messages_and_tools_are_counted(served: Served) -> None:
    message = {"role": "user", "content": "a"}
    tool = {"type": "function", "function": {"name": "f"}}
    for fields, param, limit in (
        ({"messages": [message] * (MAX_MESSAGES + 1)}, "messages", MAX_MESSAGES),
        ({"messages": [message], "tools": [tool] * (MAX_TOOLS + 1)}, "tools", MAX_TOOLS),
    ):
        for path in ("/v1/chat/completions", "/tokenize"):
            answer = await served.http.post(path, json=fields)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == param
            assert str(limit) in answer.json()["error"]["message"]
