"""Tokenizing without holding up the other requests."""

from __future__ import annotations

import asyncio

from engine.frontend.tokenizer import Tokenizer

# Encoding this much takes about a millisecond; a thread switch costs a tenth of that.
_INLINE_CHARS = 4096


async def encode(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
    """Token ids of `text`; long texts go to a thread (tokenizers releases the interpreter lock)."""
    if len(text) <= _INLINE_CHARS:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    return await asyncio.to_thread(tokenizer.encode, text, add_special_tokens=add_special_tokens)
