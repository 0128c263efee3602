"""Hash chain over full KV blocks: a block's hash covers its tokens and everything before them.

SHA-256 over the parent hash, the token ids and the extra keys (rule of vLLM's
v1/core/kv_cache_utils.py, hash_block_tokens; the encoding is our own). The cache salt enters the
first block only and reaches the others through the chain; an image enters each block that has some
of its tokens, since these are the same for all images.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

from engine.messages import ImageInput

BlockHash = bytes

_ROOT = hashlib.sha256(b"stoker-block-chain").digest()


def hash_block(
    parent: BlockHash | None,
    token_ids: Sequence[int],
    cache_salt: str | None = None,
    images: bytes = b"",
) -> BlockHash:
    """32-byte hash of one full block after `parent` (None for the first block); `images` are the
    keys of those in it.
    """
    digest = hashlib.sha256(parent or _ROOT)
    digest.update(array("q", token_ids).tobytes())
    digest.update(images)
    if cache_salt is not None:
        digest.update(b"\x00salt" + cache_salt.encode())
    return digest.digest()


def image_keys(images: Sequence[ImageInput], start: int, size: int) -> bytes:
    """Of the images with tokens among the `size` from `start` on: which, and where they begin."""
    found = [image for image in images if image.offset < start + size and start < image.end]
    return b"".join(
        b"\x00image" + image.digest + array("q", (image.offset - start,)).tobytes()
        for image in found
    )
