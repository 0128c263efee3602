"""/v1/score and /v1/rerank over a FakeCore, against cosines of the vectors that it gives."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from tests.server.fake_core import FakeCore, fake_vector
from tests.server.serving import MODEL, Served, serving


@pytest.fixture
async def served(tiny_folder: Path) -> AsyncGenerator[Served, None]:
    async with serving(tiny_folder, FakeCore([65]), in_process=True) as served:
        yield served


def cosine(served: Served, one: str, other: str) -> float:
    encode = served.llm.tokenizer.encode
    ours, theirs = (fake_vector(encode(text, add_special_tokens=True)) for text in (one, other))
    return sum(a * b for a, b in zip(ours, theirs, strict=True))


async def ask(served: Served, path: str, **body: Any) -> Any:
    response = await served.http.post(path, json={"model": MODEL, **body})
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize(
    ("one", "other", "pairs"),
    [
        ("a query", "a text", [("a query", "a text")]),
        ("a query", ["x", "yyyy"], [("a query", "x"), ("a query", "yyyy")]),
        (["a", "bbb"], ["x", "yyyy"], [("a", "x"), ("bbb", "yyyy")]),
    ],
)
async def test_scores_are_cosines(served: Served, one: Any, other: Any, pairs: Any) -> None:
    answer = await ask(served, "/v1/score", text_1=one, text_2=other)
    assert [entry["index"] for entry in answer["data"]] == list(range(len(pairs)))
    scores = [entry["score"] for entry in answer["data"]]
    assert scores == pytest.approx([cosine(served, *pair) for pair in pairs], abs=1e-6)
    prompts = sum(len(request.prompt_token_ids) for request in served.core.requests)
    assert answer["usage"]["prompt_tokens"] == prompts


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
async def test_documents_come_in_the_order_of_their_score(served: Served, path: str) -> None:
    documents = ["zz", "a query", "some other text", "q"]
    answer = await ask(served, path, query="a query", documents=documents)
    results = answer["results"]
    assert sorted(entry["index"] for entry in results) == [0, 1, 2, 3]
    assert results[0]["index"] == 1
    assert results[0]["relevance_score"] == pytest.approx(1)
    scores = [entry["relevance_score"] for entry in results]
    assert scores == sorted(scores, reverse=True)
    for entry in results:
        assert entry["document"] == {"text": documents[entry["index"]]}
    few = await ask(
        served, path, query="a query", documents=documents, top_n=2, return_documents=False
    )
    assert [entry["index"] for entry in few["results"]] == [r["index"] for r in results[:2]]
    assert "document" not in few["results"][0]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c"]}),
        ("/v1/score", {"text_1": "a", "text_2": []}),
        ("/v1/score", {"text_1": "", "text_2": "b"}),
        ("/v1/rerank", {"query": "a", "documents": []}),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": -1}),
        ("/v1/rerank", {"query": "a" * 600, "documents": ["b"]}),
    ],
)
async def test_refusals(served: Served, path: str, body: Any) -> None:
    response = await served.http.post(path, json=body)
    assert response.status_code == 400, response.text
    assert served.core.requests == []
