"""Hash chain over full KV blocks: a block's hash covers its tokens and everything before them.

SHA-256 over the parent hash, the token ids and the extra keys (rule of vLLM's
v1/core/kv_cache_utils.py, hash_block_tokens; the encoding is our own). The cache salt enters the
first block only and reaches the others through the chain.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

BlockHash = bytes

_ROOT = hashlib.sha256(b"stoker-block-chain").digest()


def hash_block(
    parent: BlockHash | None, token_ids: Sequence[int], cache_salt: str | None = None
) -> BlockHash:
    """32-byte hash of one full block after `parent` (None for the first block)."""
    digest = hashlib.sha256(parent or _ROOT)
    digest.update(array("q", token_ids).tobytes())
    if cache_salt is not None:
        digest.update(b"\x00salt" + cache_salt.encode())
    return digest.digest()
