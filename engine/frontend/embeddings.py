"""Embeddings over AsyncLLM: prompts go in, their vectors come out.

Owns the form of a vector on this side (bytes of float32); pooling is the model runner's.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from engine.core.together import all_together
from engine.errors import RequestError
from engine.frontend.async_llm import AsyncLLM
from engine.frontend.tokenizer import Tokenizer
from engine.messages import EngineCoreRequest
from engine.model_files.sentence_files import SentenceFiles
from engine.pooling_params import PoolingParams

_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Embedding:
    """A vector of length 1. `data` is little-endian float32."""

    data: bytes
    num_cached_tokens: int

    @property
    def floats(self) -> list[float]:
        return list(struct.unpack(f"<{len(self.data) // _FLOAT_BYTES}f", self.data))

    def shortened(self, dimensions: int | None) -> Embedding:
        """The first `dimensions` numbers, brought to length 1 again; None keeps all."""
        if dimensions is None:
            return self
        kept = self.floats[:dimensions]
        norm = math.hypot(*kept) or 1.0
        data = struct.pack(f"<{len(kept)}f", *(value / norm for value in kept))
        return Embedding(data, self.num_cached_tokens)


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """What a model's files put before a text under `name`, and how its tokens are pooled then."""

    text: str
    lowers_case: bool
    pooling: PoolingParams

    @classmethod
    def named(
        cls, sentence: SentenceFiles, name: str | None, tokenizer: Tokenizer, pooling: PoolingParams
    ) -> TextPrompt:
        """None is the model's default; RequestError for a name that it does not have."""
        prompts = sentence.prompts or {}
        asked = name or sentence.default_prompt
        if asked is not None and asked not in prompts:
            known = f"those of this model are {', '.join(prompts)}" if prompts else "it has none"
            raise RequestError(
                f"prompt_name {asked!r} is no prompt of this model: {known}.", param="prompt_name"
            )
        text = "" if asked is None else prompts[asked]
        if text and not sentence.pools_prompt:
            count = len(tokenizer.encode(text, add_special_tokens=True))
            left_out = count - min(1, len(tokenizer.end_tokens))
            pooling = dataclasses.replace(pooling, num_left_out=left_out)
        return cls(text, sentence.lowers_case, pooling)

    def before(self, text: str) -> str:
        """`text` as it is tokenised."""
        whole = self.text + text
        return whole.lower() if self.lowers_case else whole


def check_dimensions(dimensions: int | None, hidden_size: int) -> None:
    """Refuse to shorten a vector to nothing, or to more than it has."""
    if dimensions is not None and not 1 <= dimensions <= hidden_size:
        raise RequestError(
            f"dimensions must be in [1, {hidden_size}], the size of this model's vectors, got "
            f"{dimensions}.",
            param="dimensions",
        )


async def embed_all(llm: AsyncLLM, requests: Sequence[EngineCoreRequest]) -> list[Embedding]:
    """One vector per request, in their order; all run together. A failure ends them all."""
    return await all_together(_embed(llm, request) for request in requests)


async def _embed(llm: AsyncLLM, request: EngineCoreRequest) -> Embedding:
    async with aclosing(llm.generate(request)) as outputs:
        output = await anext(outputs)
    assert output.pooling_output is not None, "the one output of a pooling request is its vector"
    return Embedding(output.pooling_output, output.num_cached_tokens)
