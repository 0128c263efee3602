"""Prompts as token ids, without holding up the other requests, and cut on request.

Lengths are bounded first, and long texts go to a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from engine.errors import RequestError
from engine.frontend.async_llm import AsyncLLM
from engine.frontend.input_processor import tokenize_bad_words
from engine.frontend.tokenizer import Tokenizer
from engine.sampling_params import SamplingParams

# Encoding this much takes about a millisecond; a thread switch costs a tenth of that.
_INLINE_CHARS = 4096
_INLINE_TOKENS = 1024

MAX_UNBOUND_CHARS = 1 << 20
"""Longest text that is tokenised though no context could hold it: to be cut, or to be counted."""


def text_allowance(truncate_prompt_tokens: int | None) -> int:
    """Characters that a prompt may have even if no context holds them: it will be cut."""
    return 0 if truncate_prompt_tokens is None else MAX_UNBOUND_CHARS


async def encode(
    llm: AsyncLLM, text: str, *, add_special_tokens: bool, param: str, at_least: int = 0
) -> list[int]:
    """Token ids of one prompt; RequestError when so much text cannot fit the context.

    `at_least` is a number of characters that is never refused.
    """
    llm.input_processor.check_text(text, param, at_least=at_least)
    (token_ids,) = await encode_all(llm.tokenizer, [text], add_special_tokens=add_special_tokens)
    return token_ids


async def encode_all(
    tokenizer: Tokenizer, texts: Sequence[str], *, add_special_tokens: bool
) -> list[list[int]]:
    """Token ids of texts whose lengths have been checked."""
    if sum(map(len, texts)) <= _INLINE_CHARS:
        return [tokenizer.encode(text, add_special_tokens=add_special_tokens) for text in texts]
    return await asyncio.to_thread(
        tokenizer.encode_long, texts, add_special_tokens=add_special_tokens
    )


async def decode(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    """Text of token ids, special tokens included."""
    if len(token_ids) <= _INLINE_TOKENS:
        return tokenizer.decode(token_ids, skip_special_tokens=False)
    return await asyncio.to_thread(tokenizer.decode_long, token_ids, skip_special_tokens=False)


async def encode_bad_words(tokenizer: Tokenizer, params: SamplingParams) -> SamplingParams:
    """The same settings with `bad_words_token_ids`; long lists in a thread."""
    if sum(map(len, params.bad_words)) <= _INLINE_CHARS:
        return tokenize_bad_words(tokenizer, params)
    return await asyncio.to_thread(tokenize_bad_words, tokenizer, params)


def truncated(
    token_ids: list[int],
    limit: int,
    max_model_len: int,
    *,
    reserved: int = 0,
    keeps_end: bool,
    end: Sequence[int] = (),
) -> list[int]:
    """At most `limit` tokens of a prompt; -1 leaves room for `reserved` tokens of the answer.

    Text generation keeps the end, which the answer goes on from; embeddings keep the beginning, and
    `end`, the special tokens that every text ends with.
    RequestError for a limit above the model's.
    """
    if limit > max_model_len:
        raise RequestError(
            f"truncate_prompt_tokens={limit} is more than the {max_model_len} tokens of this "
            "model's context; send at most that, or -1.",
            param="truncate_prompt_tokens",
        )
    most = max(0, max_model_len - reserved) if limit == -1 else limit
    if len(token_ids) <= most:
        return token_ids
    if keeps_end:
        return token_ids[len(token_ids) - most :]
    kept = max(0, most - len(end))
    return [*token_ids[:kept], *end][:most]
