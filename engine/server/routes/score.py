"""POST /v1/score and /v1/rerank: how near texts are to a query, by the cosine of their embeddings.

Bodies and answers are vLLM's, which are Jina's and Cohere's.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from operator import mul

from pydantic import Field

from engine.errors import RequestError
from engine.frontend.embeddings import Embedding
from engine.server.http.body_limits import CheckedList
from engine.server.protocol import Body, Count, Int32, PromptLimit, make_body
from engine.server.routes.embeddings import EmbeddingBody, EmbeddingJob
from engine.server.streaming import encode_json

_Texts = CheckedList[str]


class ComparedTexts(Body):
    """Fields that /v1/score and /v1/rerank share."""

    model: str | None = None
    truncate_prompt_tokens: PromptLimit | None = None
    cache_salt: str | None = None
    priority: Int32 = 0
    user: str | None = None

    def embeddings(self, texts: Sequence[str]) -> EmbeddingBody:
        """The request for the vectors of `texts`."""
        return make_body(
            EmbeddingBody,
            {
                "input": list(texts),
                "model": self.model,
                "truncate_prompt_tokens": self.truncate_prompt_tokens,
                "cache_salt": self.cache_salt,
                "priority": self.priority,
            },
        )


class ScoreBody(ComparedTexts):
    """POST /v1/score: one text against several, or as many against as many."""

    text_1: str | _Texts
    text_2: str | _Texts

    @property
    def embedding_body(self) -> EmbeddingBody:
        """The request for the vectors of the first texts, then of the second ones."""
        first, second = _as_list(self.text_1), _as_list(self.text_2)
        if not second or len(first) not in (1, len(second)):
            raise RequestError(
                f"text_1 must hold one text, or as many as text_2, and that at least one; got "
                f"{len(first)} and {len(second)}.",
                param="text_1",
            )
        return self.embeddings([*first, *second])

    async def document(self, job: EmbeddingJob, embeddings: Sequence[Embedding]) -> bytes:
        """The answer: a score for each text of `text_2`."""
        count = len(_as_list(self.text_1))
        scores = await asyncio.to_thread(_cosines, embeddings[:count], embeddings[count:])
        return encode_json(
            {
                "id": f"score-{uuid.uuid4().hex}",
                "object": "list",
                "created": job.created,
                "model": job.model,
                "data": [
                    {"index": index, "object": "score", "score": score}
                    for index, score in enumerate(scores)
                ],
                "usage": job.usage(embeddings),
            }
        )


class RerankBody(ComparedTexts):
    """POST /v1/rerank: the documents in order of their score; `top_n` 0 is all of them."""

    query: str
    documents: _Texts = Field(min_length=1)
    top_n: Count = 0
    return_documents: bool = True

    @property
    def embedding_body(self) -> EmbeddingBody:
        """The request for the vectors of the query, then of the documents."""
        return self.embeddings([self.query, *self.documents])

    async def document(self, job: EmbeddingJob, embeddings: Sequence[Embedding]) -> bytes:
        """The answer: the nearest documents first; of equally near ones the earlier."""
        scores = await asyncio.to_thread(_cosines, embeddings[:1], embeddings[1:])
        order = sorted(range(len(scores)), key=lambda index: -scores[index])
        return encode_json(
            {
                "id": f"rerank-{uuid.uuid4().hex}",
                "model": job.model,
                "usage": job.usage(embeddings),
                "results": [
                    {
                        "index": index,
                        **(
                            {"document": {"text": self.documents[index]}}
                            if self.return_documents
                            else {}
                        ),
                        "relevance_score": scores[index],
                    }
                    for index in order[: self.top_n or None]
                ],
            }
        )


def _as_list(texts: str | Sequence[str]) -> Sequence[str]:
    return [texts] if isinstance(texts, str) else texts


def _cosines(first: Sequence[Embedding], second: Sequence[Embedding]) -> list[float]:
    """Of each vector of `second` with its partner, or with the only one; all have length 1."""
    left = [embedding.floats for embedding in first] * (len(second) if len(first) == 1 else 1)
    return [sum(map(mul, a, b.floats)) for a, b in zip(left, second, strict=True)]
