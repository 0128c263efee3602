"""Prompts as token ids: tokenized without holding up the other requests, and cut on request."""

from __future__ import annotations

import asyncio

from engine.errors import RequestError
from engine.frontend.tokenizer import Tokenizer

# Encoding this much takes about a millisecond; a thread switch costs a tenth of that.
_INLINE_CHARS = 4096


async def encode(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
    """Token ids of `text`; long texts go to a thread (tokenizers releases the interpreter lock)."""
    if len(text) <= _INLINE_CHARS:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    return await asyncio.to_thread(tokenizer.encode, text, add_special_tokens=add_special_tokens)


def truncated(
    token_ids: list[int], limit: int, max_model_len: int, *, reserved: int = 0, keeps_end: bool
) -> list[int]:
    """At most `limit` tokens of a prompt; -1 leaves room for `reserved` tokens of the answer.

    Text generation keeps the end, which the answer goes on from; embeddings keep the beginning.
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
    return token_ids[len(token_ids) - most :] if keeps_end else token_ids[:most]
